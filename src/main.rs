//! The program. Its code is in the library, where tests can reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollkeeper::cli::main()
}
