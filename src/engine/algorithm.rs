//! The algorithms: how one counter is read, charged and given back. One file each, with a script of
//! the same name and shape in `store/redis/lua/`.

pub mod fixed_window;
