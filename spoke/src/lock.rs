//! One pass at a time on a state folder; the kernel drops the lock with the process.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};

use barque_bundle::{Timestamp, platform};

use crate::config::StateFolder;
use crate::error::Error;

/// Held as long as the pass runs.
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, or says since when another process has it.
    pub fn take(state: &StateFolder, now: Timestamp) -> Result<Self, Error> {
        let path = state.lock();
        let wrap = || Error::io("cannot lock", path.clone());
        let mut file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(wrap())?;
        if !platform::try_lock(&file).map_err(wrap())? {
            let mut line = String::new();
            let _ = std::io::Read::take(&mut file, 256).read_to_string(&mut line);
            let holder = Some(line.trim().to_owned()).filter(|l| !l.is_empty());
            return Err(Error::AlreadyRunning { path: state.path().to_owned(), holder });
        }
        // For people; nothing trusts what stands here.
        let line = format!("process {} since {now}\n", std::process::id());
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(line.as_bytes()))
            .map_err(wrap())?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_pass_hears_since_when_the_first_runs_and_stale_text_locks_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateFolder::new(dir.path());
        std::fs::write(state.lock(), "process 1 since long ago\n").unwrap();
        let first = Lock::take(&state, Timestamp::from_unix_ms(0)).unwrap();
        let Err(e) = Lock::take(&state, Timestamp::from_unix_ms(1)) else { panic!("taken twice") };
        assert!(e.to_string().contains("since 1970-01-01T00:00:00.000Z"), "{e}");
        std::fs::write(state.lock(), "").unwrap();
        let Err(e) = Lock::take(&state, Timestamp::from_unix_ms(1)) else { panic!("taken twice") };
        assert!(e.to_string().ends_with(&dir.path().display().to_string()), "{e}");
        drop(first);
        Lock::take(&state, Timestamp::from_unix_ms(2)).unwrap();
    }
}
