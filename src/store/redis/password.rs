//! Passwords of Redis and of Sentinels. One in a file may change; while the file has none, the last good one stays.

use std::{
    fmt, fs,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Where the password comes from.
#[derive(Clone)]
pub enum Password {
    /// The URL.
    Text(String),
    /// A file, which is read at each connection: passwords that are tokens expire.
    File(Arc<PasswordFile>),
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("***"),
            Self::File(file) => file.fmt(f),
        }
    }
}

impl Password {
    /// The password as it is now.
    ///
    /// # Errors
    /// See [`PasswordFile::read`].
    pub fn read(&self) -> Result<String, String> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(file) => file.read(),
        }
    }

    /// Notes that a server has accepted what was read.
    pub(super) fn accepted(&self, password: String) {
        if let Self::File(file) = self {
            file.state().last_good = Some(password);
        }
    }
}

/// A file that holds a password, and the last good one: the last that a server has accepted, and until then the first
/// that was read.
pub struct PasswordFile {
    /// The flag that names the file, for log lines.
    flag: &'static str,
    path: PathBuf,
    state: Mutex<PasswordState>,
}

#[derive(Default)]
struct PasswordState {
    last_good: Option<String>,
    /// Why the file has no password now, as it was logged.
    problem: Option<String>,
}

impl fmt::Debug for PasswordFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

impl PasswordFile {
    /// The file that the flag `flag` (without its dashes) names. It is not read yet.
    pub fn new(flag: &'static str, path: PathBuf) -> Self {
        Self { flag, path, state: Mutex::default() }
    }

    /// The password in the file. If the file is missing or empty, that is logged once, and the last good password is
    /// returned.
    ///
    /// # Errors
    /// A sentence that names the file, if it has no password and none was read before.
    pub fn read(&self) -> Result<String, String> {
        let read = self.read_file();
        let mut state = self.state();
        match read {
            Ok(password) => {
                state.problem = None;
                state.last_good.get_or_insert_with(|| password.clone());
                Ok(password)
            }
            Err(problem) => {
                let Some(last_good) = state.last_good.clone() else { return Err(problem) };
                if state.problem.as_ref() != Some(&problem) {
                    tracing::warn!(
                        "--{}: {problem}; the last good password stays in use",
                        self.flag
                    );
                    state.problem = Some(problem);
                }
                Ok(last_good)
            }
        }
    }

    /// Reads the file again, and returns whether it has a password.
    pub fn renew(&self) -> bool {
        drop(self.read());
        self.state().problem.is_none()
    }

    fn read_file(&self) -> Result<String, String> {
        let problem = |what: &str| format!("{}: {what}", self.path.display());
        let text = fs::read_to_string(&self.path).map_err(|error| problem(&error.to_string()))?;
        match text.trim_end_matches(['\r', '\n']) {
            "" => Err(problem("the file is empty")),
            password => Ok(password.to_owned()),
        }
    }

    fn state(&self) -> MutexGuard<'_, PasswordState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_password_leaves_the_last_one_that_was_accepted_in_use() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("password");
        let file = Arc::new(PasswordFile::new("flag", path.clone()));
        let password = Password::File(Arc::clone(&file));
        let missing = format!("{}: No such file or directory (os error 2)", path.display());
        assert_eq!(password.read(), Err(missing));
        fs::write(&path, "\r\n").unwrap();
        assert_eq!(password.read(), Err(format!("{}: the file is empty", path.display())));
        let write = |text: &str| fs::write(&path, text).unwrap();
        write("first\n");
        assert_eq!(password.read().as_deref(), Ok("first"));
        write("wrong");
        assert_eq!(password.read().as_deref(), Ok("wrong"));
        write("");
        assert_eq!(password.read().as_deref(), Ok("first"), "the first that was read");
        assert!(!file.renew());
        write("second");
        assert!(file.renew());
        password.accepted(password.read().unwrap());
        write("wrong");
        assert_eq!(password.read().as_deref(), Ok("wrong"));
        fs::remove_file(&path).unwrap();
        assert_eq!(password.read().as_deref(), Ok("second"), "the last that was accepted");
        assert_eq!(format!("{password:?}"), format!("{path:?}"), "no password is shown");
    }
}
