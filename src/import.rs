//! Rules from the files of other services.

pub mod limitador;
