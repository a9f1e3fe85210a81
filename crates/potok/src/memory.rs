//! How the process uses the machine's memory.

/// What is written in Rust. Batches are large, live for some milliseconds, and go from thread to
/// thread: the allocator of GNU systems asks the kernel for each of them, and the kernel clears
/// every page of it (`docs/decisions/0012-an-allocator.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Allocations from this size on are the kernel's own, and go back to it when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BYTES: libc::c_int = 256 << 10;

/// Keeps large buffers of what is written in C out of its heap.
///
/// The allocator of GNU systems does so at first, and then, having seen some of them freed, puts
/// ever larger ones into its heaps, of which each thread may have one of its own. Buffers of
/// Kafka's client live for some milliseconds, in no order, and would leave heaps full of holes.
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
