//! What processor time a process has used, to the nanosecond: the scheduler counts it for each
//! thread, while /proc/PID/stat ticks once in 10 ms.

use std::{fs, path::PathBuf};

use crate::Result;

/// Nanoseconds that all threads of the process have run. None may end in between.
pub(crate) fn used(process: u32) -> Result<u64> {
    let tasks = PathBuf::from(format!("/proc/{process}/task"));
    let mut sum = 0;
    for task in fs::read_dir(&tasks).map_err(|error| format!("{}: {error}", tasks.display()))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        sum += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(sum)
}
