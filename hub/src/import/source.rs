//! Where a bundle's archive comes from: a request's body, or a path on this node.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use barque_bundle::open::{Bundle, Form, SendError};
use barque_bundle::path::printable;
use barque_bundle::{ErrorKind, platform};

use crate::error::{Error, Refusal, chain};

pub enum Source {
    Body(Box<dyn Read + Send>),
    /// Below one of the allowed folders.
    Path(PathBuf),
}

/// The bytes of an archive, and what a thread that makes them has to say at their end.
pub(super) struct Opened {
    pub bytes: Box<dyn Read + Send>,
    pub writer: Option<std::thread::JoinHandle<Result<(), SendError>>>,
}

impl Opened {
    /// What went wrong with the drive while it was read, which comes before what that led to.
    pub fn fault(self) -> Option<Refusal> {
        // The reading end goes first, so that a writer that waits ends.
        drop(self.bytes);
        match self.writer?.join() {
            Ok(Err(SendError::Bundle(e))) => Some(e.into()),
            _ => None,
        }
    }
}

impl Source {
    pub(super) fn open(self, allowed: &[PathBuf]) -> Result<Opened, Error> {
        let path = match self {
            Self::Body(bytes) => return Ok(Opened { bytes, writer: None }),
            Self::Path(path) => permitted(&path, allowed)?,
        };
        let bundle = Bundle::open(&path).map_err(Refusal::from)?;
        if bundle.form() != Form::Folder {
            let file = platform::open_regular(&path).map_err(Error::io("cannot read", &path))?;
            return Ok(Opened { bytes: Box::new(file), writer: None });
        }
        let (bytes, out) = io::pipe().map_err(Error::io("cannot read", &path))?;
        let out = io::BufWriter::with_capacity(256 * 1024, out);
        let writer = std::thread::spawn(move || bundle.write_archive(out));
        Ok(Opened { bytes: Box::new(bytes), writer: Some(writer) })
    }
}

/// The path with links resolved, if it lies below an allowed folder.
fn permitted(path: &Path, allowed: &[PathBuf]) -> Result<PathBuf, Refusal> {
    let shown = || printable(&path.display().to_string());
    let refuse = |why: String| Refusal::new(ErrorKind::Forbidden, "path_not_allowed", why);
    if allowed.is_empty() {
        return Err(refuse(
            "this node imports from no folder of its own: start it with --allow-dir DIR, or let \
             `barque hub import` send the bundle without --on-node"
                .to_owned(),
        ));
    }
    if !path.is_absolute() {
        return Err(refuse(format!("{} is not an absolute path on the node", shown())));
    }
    let real = std::fs::canonicalize(path).map_err(|e| {
        let why = format!("{} cannot be read on the node: {}", shown(), chain(&e));
        Refusal::new(ErrorKind::NotFound, "no_such_path", why)
    })?;
    let is_below = |folder: &PathBuf| {
        std::fs::canonicalize(folder).is_ok_and(|folder| real.starts_with(folder))
    };
    match allowed.iter().any(is_below) {
        true => Ok(real),
        false => Err(refuse(format!(
            "{} is not below a folder that this node imports from (--allow-dir)",
            shown()
        ))),
    }
}
