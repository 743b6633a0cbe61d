//! The secret that all nodes of a cluster share: `cluster.token` (0600), one line, or two while it is
//! changed. The first is the one that this node says; it hears both.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use barque_bundle::{Sha256Digest, platform};

use crate::error::Error;

/// How often a value that does not fit makes the file be read again.
const READ_AGAIN: Duration = Duration::from_secs(1);
const VALUES_MAX: usize = 2;

/// The values at hand, read anew when another one is heard.
pub struct ClusterToken {
    path: PathBuf,
    values: RwLock<Vec<String>>,
    read_at: Mutex<Instant>,
}

impl ClusterToken {
    /// Reads the file; one of a hub that never had another node is made from `fresh`.
    pub fn open(path: PathBuf, fresh: Option<String>) -> Result<Self, Error> {
        if !path.exists() {
            let Some(fresh) = fresh else {
                return Err(Error::Unusable(format!(
                    "{} is gone; copy it from another node of this hub",
                    path.display()
                )));
            };
            save(&path, &[fresh])?;
        }
        let values = RwLock::new(read(&path)?);
        Ok(Self { path, values, read_at: Mutex::new(Instant::now()) })
    }

    /// What this node says to others.
    pub fn spoken(&self) -> String {
        let values = self.values.read().unwrap_or_else(PoisonError::into_inner);
        values.first().cloned().unwrap_or_default()
    }

    pub fn values(&self) -> Vec<String> {
        self.values.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a caller said a value that counts. It takes the same time whatever was said: what is
    /// compared are digests, to their end.
    pub fn hears(&self, said: &str) -> bool {
        if self.fits(said) {
            return true;
        }
        {
            let mut read_at = self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
            if read_at.elapsed() < READ_AGAIN {
                return false;
            }
            *read_at = Instant::now();
        }
        match read(&self.path) {
            Ok(values) => *self.values.write().unwrap_or_else(PoisonError::into_inner) = values,
            Err(e) => tracing::error!(error = %e.told(), "the cluster token cannot be read"),
        }
        self.fits(said)
    }

    fn fits(&self, said: &str) -> bool {
        let said = Sha256Digest::of(said.as_bytes());
        let values = self.values.read().unwrap_or_else(PoisonError::into_inner);
        values.iter().fold(false, |fits, value| {
            let own = Sha256Digest::of(value.as_bytes());
            let differs =
                own.as_bytes().iter().zip(said.as_bytes()).fold(0, |d, (a, b)| d | (a ^ b));
            fits | (differs == 0)
        })
    }

    /// Takes another set of values, the spoken one first.
    pub fn replace(&self, values: &[String]) -> Result<(), Error> {
        save(&self.path, values)?;
        *self.values.write().unwrap_or_else(PoisonError::into_inner) = read(&self.path)?;
        Ok(())
    }
}

/// Writes the values, one a line.
pub fn save(path: &Path, values: &[String]) -> Result<(), Error> {
    let text: String = values.iter().take(VALUES_MAX).map(|v| format!("{v}\n")).collect();
    platform::write_durably(path, text.as_bytes(), 0o600).map_err(Error::io("cannot write", path))
}

fn read(path: &Path) -> Result<Vec<String>, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::io("cannot read", path))?;
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    let values: Vec<String> = lines.map(str::to_owned).collect();
    if values.is_empty() || values.len() > VALUES_MAX {
        return Err(Error::Unusable(format!(
            "{} has to hold one value, or two while it is changed, a line each",
            path.display()
        )));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_values_count_while_the_token_changes_and_a_new_file_is_found_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.token");
        assert!(ClusterToken::open(path.clone(), None).is_err());
        let token = ClusterToken::open(path.clone(), Some("old".into())).unwrap();
        assert!(token.hears("old") && !token.hears("new") && !token.hears(""));
        token.replace(&["new".into(), "old".into()]).unwrap();
        assert!(token.hears("old") && token.hears("new"));
        assert_eq!(token.spoken(), "new");
        save(&path, &["newer".into()]).unwrap();
        *token.read_at.lock().unwrap() -= READ_AGAIN;
        assert!(token.hears("newer") && !token.hears("old"));
        save(&path, &["a".into(), "b".into()]).unwrap();
        std::fs::write(&path, "a\nb\nc\n").unwrap();
        assert!(ClusterToken::open(path, None).is_err());
    }
}
