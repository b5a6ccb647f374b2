//! The program. Its code is in the library, where tests can reach it.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// A call makes a dozen small allocations, which cost less than with the C library (docs/internals/performance.md).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    tollkeeper::cli::main()
}
