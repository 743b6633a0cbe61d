//! Walks a tree in the order of paths, without following links and without opening anything but
//! folders.

use std::fs;
use std::io;
use std::path::Path;

use crate::error::Error;
use crate::ledger::StatRow;

/// How deep folders may nest; deeper ones are named as unreadable.
const DEPTH_MAX: usize = 512;

/// Names of one folder that are sorted at once; what comes behind them is found all the same.
const SORTED_MAX: usize = 20_000;

/// One name of the tree.
pub(super) enum Visit<'a> {
    /// A regular file that may be shipped.
    File {
        path: &'a str,
        stat: StatRow,
    },
    /// A candidate by name that is held back by rule.
    Skipped {
        path: &'a str,
        code: &'static str,
    },
    /// No candidate.
    Ignored(Ignored),
    Unreadable {
        path: &'a str,
        error: io::Error,
    },
}

/// Why a name is no candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// It starts with a dot.
    Hidden,
    /// A file that does not end in `.parquet`.
    Foreign,
    /// A link to something else than a `.parquet` name.
    Link,
    /// A device, socket or FIFO.
    Special,
    /// `_temporary` (uncommitted output of Hadoop and Spark) or `lost+found`.
    Scratch,
    /// A folder whose name ends in `.parquet`.
    ParquetFolder,
    /// The spoke's own state folder.
    OwnFolder,
}

impl Ignored {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hidden => "hidden",
            Self::Foreign => "foreign",
            Self::Link => "link",
            Self::Special => "special",
            Self::Scratch => "scratch_folder",
            Self::ParquetFolder => "folder_named_parquet",
            Self::OwnFolder => "own_folder",
        }
    }
}

type Visitor<'a> = dyn FnMut(Visit<'_>) -> Result<(), Error> + 'a;

/// Visits everything below `root`; a root that cannot be read is an error, so that a source that
/// is not mounted is never taken for an empty one without a word.
pub(super) fn walk(root: &Path, own: &Path, visitor: &mut Visitor<'_>) -> Result<(), Error> {
    let top = fs::read_dir(root).map_err(Error::io("cannot read the source folder", root))?;
    let mut path = String::new();
    Walk { root, own, visitor }.folder(top, &mut path, 0)
}

/// A folder comes where the paths below it come.
fn sort_key(item: &fs::DirEntry) -> Vec<u8> {
    let mut key = item.file_name().into_encoded_bytes();
    if item.file_type().is_ok_and(|t| t.is_dir()) {
        key.push(b'/');
    }
    key
}

struct Walk<'a, 'b> {
    root: &'a Path,
    own: &'a Path,
    visitor: &'a mut Visitor<'b>,
}

impl Walk<'_, '_> {
    /// Visits a folder in the order of paths, or as many names of it at once as memory is for.
    fn folder(
        &mut self,
        mut items: fs::ReadDir,
        path: &mut String,
        depth: usize,
    ) -> Result<(), Error> {
        loop {
            let (mut names, mut seen) = (Vec::new(), 0);
            for item in items.by_ref().take(SORTED_MAX) {
                seen += 1;
                match item {
                    Ok(item) => names.push((sort_key(&item), item)),
                    Err(error) => (self.visitor)(Visit::Unreadable { path, error })?,
                }
            }
            if seen == 0 {
                return Ok(());
            }
            names.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
            for (_, item) in names {
                self.item(&item, path, depth)?;
            }
        }
    }

    fn item(&mut self, item: &fs::DirEntry, path: &mut String, depth: usize) -> Result<(), Error> {
        let os_name = item.file_name();
        let lossy = os_name.to_string_lossy();
        if lossy.starts_with('.') {
            return (self.visitor)(Visit::Ignored(Ignored::Hidden));
        }
        let looks_parquet = lossy.ends_with(barque_bundle::path::SUFFIX);
        let Some(name) = os_name.to_str() else {
            return self.not_utf8(item, &lossy, path);
        };
        let parent_len = path.len();
        if !path.is_empty() {
            path.push('/');
        }
        path.push_str(name);
        let visited = match item.file_type() {
            Err(error) => (self.visitor)(Visit::Unreadable { path, error }),
            Ok(kind) if kind.is_dir() => self.subfolder(name, path, depth),
            Ok(kind) if kind.is_file() && looks_parquet => self.file(item, path),
            Ok(kind) if kind.is_file() => (self.visitor)(Visit::Ignored(Ignored::Foreign)),
            Ok(kind) if kind.is_symlink() => (self.visitor)(match looks_parquet {
                true => Visit::Skipped { path, code: "link" },
                false => Visit::Ignored(Ignored::Link),
            }),
            Ok(_) => (self.visitor)(match looks_parquet {
                true => Visit::Skipped { path, code: "not_a_file" },
                false => Visit::Ignored(Ignored::Special),
            }),
        };
        path.truncate(parent_len);
        visited
    }

    /// A file is held back by name; a folder hides everything below it, so it is named as unread.
    fn not_utf8(&mut self, item: &fs::DirEntry, lossy: &str, above: &str) -> Result<(), Error> {
        let shown = format!("{above}/{lossy}");
        let path = shown.trim_start_matches('/');
        if item.file_type().is_ok_and(|t| t.is_dir()) {
            let error = io::Error::other("the folder's name is not UTF-8; rename it");
            return (self.visitor)(Visit::Unreadable { path, error });
        }
        (self.visitor)(match lossy.ends_with(barque_bundle::path::SUFFIX) {
            true => Visit::Skipped { path, code: "path_not_utf8" },
            false => Visit::Ignored(Ignored::Foreign),
        })
    }

    fn file(&mut self, item: &fs::DirEntry, path: &str) -> Result<(), Error> {
        match item.metadata() {
            Ok(m) => (self.visitor)(Visit::File { path, stat: StatRow::of(&m) }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                (self.visitor)(Visit::Skipped { path, code: "vanished" })
            }
            Err(error) => (self.visitor)(Visit::Unreadable { path, error }),
        }
    }

    fn subfolder(&mut self, name: &str, path: &mut String, depth: usize) -> Result<(), Error> {
        if name == "_temporary" || name == "lost+found" {
            return (self.visitor)(Visit::Ignored(Ignored::Scratch));
        }
        if name.ends_with(barque_bundle::path::SUFFIX) {
            return (self.visitor)(Visit::Ignored(Ignored::ParquetFolder));
        }
        let absolute = self.root.join(path.as_str());
        if fs::canonicalize(&absolute).is_ok_and(|p| p == self.own) {
            return (self.visitor)(Visit::Ignored(Ignored::OwnFolder));
        }
        if depth >= DEPTH_MAX {
            let error = io::Error::other("folders nest too deep here");
            return (self.visitor)(Visit::Unreadable { path, error });
        }
        match fs::read_dir(&absolute) {
            Ok(items) => self.folder(items, path, depth + 1),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => (self.visitor)(Visit::Unreadable { path, error }),
        }
    }
}
