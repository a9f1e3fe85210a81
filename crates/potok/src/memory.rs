//! How the process uses the machine's memory.

/// Allocations from this size on are the kernel's own, and go back to it when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BYTES: libc::c_int = 256 << 10;

/// Keeps large buffers out of the heap.
///
/// The allocator of GNU systems does so at first, and then, having seen some of them freed, puts
/// ever larger ones into its heaps, of which each thread may have one of its own. Blocks of the log
/// and bodies of requests live for some milliseconds, in no order, and leave heaps full of holes
/// behind: a process that holds 64 MiB then takes twice as much.
pub fn set_up() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code, reason = "the allocator has no other way to be told")]
    // SAFETY: a plain call with two numbers, before any other thread is started.
    unsafe {
        // Where it refuses, memory is used as before.
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 4 * LARGE_BYTES);
    }
}
