//! The processor time of a process, in nanoseconds. The scheduler counts it for each thread; /proc/PID/stat
//! only counts ticks of 10 ms.

use std::{fs, path::PathBuf};

use crate::process::Result;

/// Nanoseconds that the threads of the process have run. A thread that ends takes its part with it.
pub(crate) fn used(process: u32) -> Result<u64> {
    let tasks = PathBuf::from(format!("/proc/{process}/task"));
    let mut sum = 0;
    for task in fs::read_dir(&tasks).map_err(|error| format!("{}: {error}", tasks.display()))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        sum += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(sum)
}
