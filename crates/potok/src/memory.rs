//! How the process uses the machine's memory.
//!
//! Batches and buffers are large, live for some milliseconds, and go from thread to thread. The
//! allocator of GNU systems asks the kernel for each of them, which clears every page, or leaves its
//! heaps full of holes; see `docs/decisions/0012-an-allocator.md`.

/// Serves Rust and, by taking the place of `malloc`, what is written in C.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
