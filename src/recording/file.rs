//! The folder of a recording: files one after another, each a series of LZ4 frames.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use lz4_flex::frame::{BlockSize, FrameEncoder, FrameInfo};

use crate::{engine::time::Timestamp, process::pause::random};

const PREFIX: &str = "calls-";
const SUFFIX: &str = ".lz4";

/// A folder that is full has about this many files, and loses the oldest one when it needs room.
const FILES: u64 = 16;

#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    bytes_max: u64,
    current: Option<Current>,
    /// Keeps its memory from frame to frame.
    encoder: FrameEncoder<Vec<u8>>,
}

#[derive(Debug)]
struct Current {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Folder {
    /// A recording in this folder, whose files take at most `bytes_max` bytes together.
    pub(super) fn new(path: &Path, bytes_max: usize) -> Self {
        let bytes_max = u64::try_from(bytes_max).unwrap_or(u64::MAX);
        Self { path: path.to_owned(), bytes_max, current: None, encoder: encoder() }
    }

    /// Writes these calls at `now`. A new file removes the oldest ones that have no place beside it. After an error the next
    /// calls begin a new file.
    pub(super) fn write(&mut self, calls: &[u8], now: Timestamp) -> Result<(), String> {
        let problem = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
        self.encoder.get_mut().clear();
        write_frame(calls, &mut self.encoder).map_err(|error| problem(&self.path, error))?;
        let frame = self.encoder.get_ref();
        let bytes = u64::try_from(frame.len()).unwrap_or(u64::MAX);
        let has_room = |current: &Current| {
            current.path.exists() && current.bytes.saturating_add(bytes) <= self.bytes_max / FILES
        };
        let mut current = match self.current.take().filter(has_room) {
            Some(current) => current,
            None => self.open(now, bytes).map_err(|error| problem(&self.path, error))?,
        };
        if let Err(error) = current.file.write_all(frame) {
            current.take_back();
            return Err(problem(&current.path, error));
        }
        current.bytes += bytes;
        self.current = Some(current);
        Ok(())
    }

    /// Opens a file for this number of bytes and more.
    fn open(&self, now: Timestamp, bytes: u64) -> io::Result<Current> {
        fs::create_dir_all(&self.path)?;
        self.make_room(bytes.max(self.bytes_max / FILES))?;
        // By name, the oldest is the first, also after the clock was set back.
        let last = files(&self.path)?.last().and_then(|file| written_from(file));
        let from = last.map_or(now, |last| now.max(last.plus_millis(1)));
        let name = format!("{PREFIX}{:013}-{:08x}{SUFFIX}", from.as_millis(), random());
        let path = self.path.join(name);
        Ok(Current { file: create(&path)?, path, bytes: 0 })
    }

    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let mut kept = Vec::new();
        for path in files(&self.path)? {
            // Others may remove files too.
            if let Some(metadata) = unless_gone(fs::metadata(&path))? {
                kept.push((path, metadata.len()));
            }
        }
        let mut sum = kept.iter().fold(bytes, |sum, (_, bytes)| sum.saturating_add(*bytes));
        for (path, bytes) in kept {
            if sum <= self.bytes_max {
                break;
            }
            unless_gone(fs::remove_file(path))?;
            sum = sum.saturating_sub(bytes);
        }
        Ok(())
    }
}

impl Current {
    /// Removes what was written of a frame, and the file if it has no other: a full disk must not fill with empty files.
    fn take_back(&self) {
        let taken_back = match self.bytes {
            0 => fs::remove_file(&self.path),
            bytes => self.file.set_len(bytes),
        };
        // The disk may refuse that too; a reader names what is left.
        drop(taken_back);
    }
}

/// The recorded files in this folder, the oldest first. A folder that does not exist has none.
pub fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in unless_gone(fs::read_dir(folder))?.into_iter().flatten() {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(PREFIX)
            && name.ends_with(SUFFIX)
            && unless_gone(fs::metadata(&path))?.is_some_and(|found| found.is_file())
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// From when a file of a recording was written, by its name; `None` if that does not say it.
pub fn written_from(file: &Path) -> Option<Timestamp> {
    let name = file.file_name()?.to_str()?.strip_prefix(PREFIX)?;
    name.split_once('-')?.0.parse().ok().map(Timestamp::from_millis)
}

/// A new file that only its owner reads.
pub fn create(file: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)
}

fn unless_gone<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// A whole frame with a checksum, so that a file that ends early loses no more than its last one, and a bad disk is found. All
/// frames of a file have blocks of one size, which its reader needs.
pub fn compressed(calls: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = encoder();
    write_frame(calls, &mut encoder)?;
    Ok(encoder.into_inner())
}

fn write_frame(calls: &[u8], encoder: &mut FrameEncoder<Vec<u8>>) -> io::Result<()> {
    encoder.write_all(calls)?;
    Ok(encoder.try_finish()?)
}

fn encoder() -> FrameEncoder<Vec<u8>> {
    let info = FrameInfo::new().content_checksum(true).block_size(BlockSize::Max256KB);
    FrameEncoder::with_frame_info(info, Vec::new())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use lz4_flex::frame::FrameDecoder;
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_short_block_and_a_long_one_are_read_from_one_file() {
        let blocks = [vec![b'a'; 100], vec![b'b'; 1 << 20]];
        let file = blocks.each_ref().map(|block| compressed(block).unwrap()).concat();
        let mut frames = FrameDecoder::new(&file[..]);
        for block in blocks {
            let mut read = Vec::new();
            frames.read_to_end(&mut read).unwrap();
            assert_eq!(read, block);
        }
    }

    #[test]
    fn a_folder_with_the_name_of_a_file_is_none() {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("calls-0000000000001-00000000.lz4")).unwrap();
        assert!(files(folder.path()).unwrap().is_empty());
    }

    #[test]
    fn the_last_file_by_name_is_the_newest_also_after_the_clock_was_set_back() {
        let folder = TempDir::new().unwrap();
        for (calls, at) in [(b"first", 2_000_000), (b"later", 1_000)] {
            let mut recording = Folder::new(folder.path(), 1 << 20);
            recording.write(calls, Timestamp::from_millis(at)).unwrap();
        }
        let files = files(folder.path()).unwrap();
        assert_eq!(fs::read(&files[1]).unwrap(), compressed(b"later").unwrap());
        assert_eq!(written_from(&files[1]), Some(Timestamp::from_millis(2_000_001)));
    }
}
