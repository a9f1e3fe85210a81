//! How the process uses the machine's memory.
//!
//! Batches and buffers are large, live for some milliseconds, and go from thread to thread. The
//! allocator of GNU systems asks the kernel for each of them, which clears every page, or leaves its
//! heaps full of holes; see `docs/decisions/0012-use-mimalloc.md`.

/// Serves Rust and, by taking the place of `malloc`, what is written in C.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[cfg(target_os = "linux")]
mod settings {
    #![allow(unsafe_code, reason = "the allocator is told before it is asked for anything")]

    use std::ffi::{c_int, c_long};

    /// Options by their numbers in mimalloc 2, and what they are to be. A variable such as
    /// `MIMALLOC_PURGE_DELAY` still wins.
    const SETTINGS: [(c_int, c_long); 2] = [
        // Pages are got one by one when they are used, not two megabytes at a time.
        (ARENA_EAGER_COMMIT, 0),
        // What is not used goes back after a second, and large pieces after ten, not after a
        // hundredth of that: with every batch the same pages would be given back and got again.
        (PURGE_DELAY_MILLIS, 1_000),
    ];
    const ARENA_EAGER_COMMIT: c_int = 4;
    const PURGE_DELAY_MILLIS: c_int = 15;

    unsafe extern "C" {
        fn mi_option_set_default(option: c_int, value: c_long);
    }

    extern "C" fn tell() {
        for (option, value) in SETTINGS {
            // SAFETY: writes into a table; nothing else of the program runs yet.
            unsafe { mi_option_set_default(option, value) };
        }
    }

    /// Called before anything else of the program and its libraries, so before the first allocation.
    #[used]
    // SAFETY: the section holds functions without arguments for whoever starts the program.
    #[unsafe(link_section = ".preinit_array")]
    static TELL: extern "C" fn() = tell;

    #[cfg(test)]
    mod tests {
        use super::*;

        unsafe extern "C" {
            fn mi_option_get(option: c_int) -> c_long;
            fn mi_version() -> c_int;
        }

        #[test]
        fn the_allocator_has_heard_it() {
            // SAFETY: these only read.
            let version = unsafe { mi_version() };
            assert_eq!(version / 10_000, 2, "the numbers of the options are those of mimalloc 2");
            for (option, value) in SETTINGS {
                // SAFETY: as above.
                assert_eq!(unsafe { mi_option_get(option) }, value, "option {option}");
            }
        }
    }
}
