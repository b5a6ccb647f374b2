//! Rules from the files of other services. Compiling the rules is left to `rules`.

pub mod limitador;
