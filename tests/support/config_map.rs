//! A volume with a ConfigMap, as kubelet keeps it.

use std::{fs, os::unix::fs::symlink, path::Path};

/// Writes a file as kubelet does: to a new hidden folder, to which a link is moved.
pub fn publish(volume: &Path, version: &str, name: &str, text: &str) {
    let data = format!("..{version}");
    fs::create_dir_all(volume.join(&data)).unwrap();
    fs::write(volume.join(&data).join(name), text).unwrap();
    symlink(data, volume.join("..data_tmp")).unwrap();
    fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
    let _ = symlink(format!("..data/{name}"), volume.join(name));
}
