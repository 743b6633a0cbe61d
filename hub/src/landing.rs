//! The folder that readers look at: whole final files below their namespaces and nothing else.
//!
//! It keeps V1 (a file appears by one rename of verified, synced bytes) and V2 (a rename never
//! replaces). No temporary name ever stands here.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use barque_bundle::{Sha256Digest, platform};

use crate::error::Error;

/// Mode of landed files; folders get the search bits as well.
pub const FILE_MODE: u32 = 0o644;
pub const FOLDER_MODE: u32 = 0o755;

/// The landing folder and its staging neighbour on the same file system.
#[derive(Clone, Debug)]
pub struct Landing {
    root: PathBuf,
    durable: Arc<Mutex<Durable>>,
}

/// Folders whose names, and all above, this process has synced.
#[derive(Debug, Default)]
struct Durable {
    folders: HashSet<PathBuf>,
    /// Folders made so far: a sync that began before one was made says nothing of it.
    made: u64,
}

/// Folders that are remembered for one body at the most.
const SEEN_MAX: usize = 10_000;
/// Folders that are known to be durable at the most.
const DURABLE_MAX: usize = 20_000;

/// Folders of landing that were looked at for one body: real ones on its device, and those that were
/// not there. What an operator puts there meanwhile is found by the rename, which replaces nothing.
#[derive(Debug, Default)]
pub struct Seen {
    device: Option<u64>,
    folders: HashMap<String, Folder>,
}

/// How a folder of landing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Folder {
    There,
    Absent,
}

/// What stands at a landed name before anything is written there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Free,
    /// A regular file; whose it is, the manifest knows.
    File,
    /// Something that no file can land on or below.
    Blocked(String),
}

impl Landing {
    /// Makes the folders and refuses a file system that would break an invariant.
    pub fn open(root: &Path, staging: &Path) -> Result<Self, Error> {
        make_folder(root, FOLDER_MODE)?;
        make_folder(staging, 0o700)?;
        let device =
            |p: &Path| fs::metadata(p).map(|m| m.dev()).map_err(Error::io("cannot look at", p));
        if device(root)? != device(staging)? {
            return Err(Error::Unusable(format!(
                "{} and {} are on different file systems, so files could not appear whole; \
                 set landing.dir so that both lie on one",
                root.display(),
                staging.display()
            )));
        }
        probe(staging)?;
        Ok(Self { root: root.to_owned(), durable: Arc::default() })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn path(&self, landed: &str) -> PathBuf {
        self.root.join(landed)
    }

    /// Looks before bytes are taken: a folder or file in the way is found early. Folders that were
    /// looked at are not looked at again, and nothing is looked for in one that was not there.
    pub fn target(&self, landed: &str, seen: &mut Seen) -> io::Result<Target> {
        let device = match seen.device {
            Some(device) => device,
            None => *seen.device.insert(fs::metadata(&self.root)?.dev()),
        };
        let (folder, name) = landed.rsplit_once('/').unwrap_or(("", landed));
        match seen.folders.get(folder) {
            Some(Folder::Absent) => return Ok(Target::Free),
            Some(Folder::There) => return self.walk_to(&self.root.join(folder), name, device),
            None => {}
        }
        let target = self.walk_to(&self.root, landed, device)?;
        if !matches!(target, Target::Blocked(_)) {
            if seen.folders.len() >= SEEN_MAX {
                seen.folders.clear();
            }
            let is_there = self.root.join(folder).is_dir();
            let found = if is_there { Folder::There } else { Folder::Absent };
            seen.folders.insert(folder.to_owned(), found);
        }
        Ok(target)
    }

    fn walk_to(&self, from: &Path, below: &str, device: u64) -> io::Result<Target> {
        let mut at = from.to_owned();
        let mut segments = below.split('/').peekable();
        while let Some(segment) = segments.next() {
            at.push(segment);
            let last = segments.peek().is_none();
            match fs::symlink_metadata(&at) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Target::Free),
                Err(e) => return Err(e),
                Ok(m) if m.dev() != device => {
                    let what = format!("{} (another file system is mounted there)", at.display());
                    return Ok(Target::Blocked(what));
                }
                Ok(m) if last && m.is_file() => return Ok(Target::File),
                Ok(m) if !last && m.is_dir() => {}
                Ok(_) => return Ok(Target::Blocked(at.display().to_string())),
            }
        }
        Ok(Target::Free)
    }

    /// Renames a staged file to its landed name, making folders as needed; nothing is synced yet.
    ///
    /// Fails with `AlreadyExists` when something stands there.
    pub fn promote(&self, staged: &Path, landed: &str) -> io::Result<()> {
        let target = self.path(landed);
        match platform::rename_without_replacing(staged, &target) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && staged.exists() => {
                self.make_folders(target.parent().unwrap_or(&self.root))?;
                platform::rename_without_replacing(staged, &target)
            }
            other => other,
        }
    }

    /// New folders, whose names [`Landing::sync_folders_of`] makes durable.
    fn make_folders(&self, folder: &Path) -> io::Result<()> {
        if folder == self.root || folder.is_dir() {
            return Ok(());
        }
        let parent = folder.parent().unwrap_or(&self.root);
        self.make_folders(parent)?;
        // Nobody finds it there before it is known to be new.
        let mut known = self.durable();
        match fs::DirBuilder::new().mode(FOLDER_MODE).create(folder) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(e) => return Err(e),
        }
        // Also one that was durable, and was removed since.
        known.made += 1;
        known.folders.remove(folder);
        known.folders.remove(parent);
        drop(known);
        // The mode that was asked for, whatever the umask says.
        fs::set_permissions(folder, fs::Permissions::from_mode(FOLDER_MODE))
    }

    fn durable(&self) -> MutexGuard<'_, Durable> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the names of these files durable: each folder synced once, and those above up to the
    /// first that this process knows to be durable.
    ///
    /// Also their modes: a crash may have left a folder between its making and its sync.
    pub fn sync_folders_of<'a>(&self, landed: impl Iterator<Item = &'a str>) -> io::Result<()> {
        let mut folders = BTreeSet::new();
        let known = self.durable();
        for name in landed {
            let mut at = self.path(name);
            let mut is_own = true;
            while at.pop() && at.starts_with(&self.root) {
                let is_durable = !is_own && known.folders.contains(&at);
                if is_durable || !folders.insert(at.clone()) {
                    break;
                }
                is_own = false;
            }
        }
        let made = known.made;
        drop(known);
        for folder in &folders {
            let mode = fs::symlink_metadata(folder)?.permissions().mode() & 0o777;
            if mode != FOLDER_MODE {
                fs::set_permissions(folder, fs::Permissions::from_mode(FOLDER_MODE))?;
            }
            platform::sync_folder(folder)?;
        }
        let mut known = self.durable();
        if known.folders.len() + folders.len() > DURABLE_MAX {
            known.folders.clear();
        }
        if known.made == made {
            known.folders.extend(folders);
        }
        Ok(())
    }

    /// Makes a file that was found in place as good as one that was promoted: mode and sync.
    pub fn adopt(&self, landed: &str) -> io::Result<()> {
        let file = platform::open_regular(&self.path(landed))?;
        file.set_permissions(fs::Permissions::from_mode(FILE_MODE))?;
        platform::sync(&file)
    }

    /// Whether the landed file has this content, by reading it.
    pub fn holds(&self, landed: &str, sha256: &Sha256Digest, size: u64) -> io::Result<bool> {
        let mut file = match platform::open_regular(&self.path(landed)) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(e),
        };
        if file.metadata()?.len() != size {
            return Ok(false);
        }
        Ok(Sha256Digest::of_reader(&mut file)? == (*sha256, size))
    }
}

fn make_folder(path: &Path, mode: u32) -> Result<(), Error> {
    platform::create_folders_durably(path, mode)
        .map_err(Error::io("cannot make the folder", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(Error::io("cannot set the mode of", path))
}

/// Tries in staging what landing needs of the file system.
fn probe(staging: &Path) -> Result<(), Error> {
    let dir = staging.join("probe");
    let _ = fs::remove_dir_all(&dir);
    let outcome = fs::create_dir(&dir)
        .and_then(|()| probe_in(&dir))
        .map_err(Error::io("cannot probe the file system at", staging));
    let _ = fs::remove_dir_all(&dir);
    match outcome? {
        None => Ok(()),
        Some(lack) => Err(Error::Unusable(format!(
            "the file system at {} {lack}; landed files would not be safe there",
            staging.display()
        ))),
    }
}

/// What the file system lacks, if anything.
fn probe_in(dir: &Path) -> io::Result<Option<&'static str>> {
    let (a, b) = (dir.join("a"), dir.join("b"));
    fs::write(&a, "a")?;
    fs::write(&b, "b")?;
    if platform::rename_without_replacing(&a, &b).is_ok() || fs::read(&b)? != b"b" {
        return Ok(Some("replaces a file on rename"));
    }
    platform::sync_folder(dir)?;
    if let Err(e) = fs::write(dir.join("n".repeat(255)), "") {
        let too_long =
            matches!(e.kind(), io::ErrorKind::InvalidFilename | io::ErrorKind::InvalidInput);
        return if too_long { Ok(Some("holds no names of 255 bytes")) } else { Err(e) };
    }
    if dir.join("A").exists() {
        return Ok(Some("takes names that differ by case for one"));
    }
    fs::write(dir.join("caf\u{e9}"), "")?;
    if dir.join("cafe\u{301}").exists() {
        return Ok(Some("takes names in different Unicode forms for one"));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_or_a_file_in_the_way_is_found_before_bytes_are_taken() {
        let dir = tempfile::tempdir().unwrap();
        let landing = Landing::open(&dir.path().join("l"), &dir.path().join("s")).unwrap();
        let seen = Seen::default;
        assert_eq!(landing.target("s/a/b.parquet", &mut seen()).unwrap(), Target::Free);
        fs::create_dir_all(landing.path("s/a/b.parquet")).unwrap();
        assert!(matches!(
            landing.target("s/a/b.parquet", &mut seen()).unwrap(),
            Target::Blocked(_)
        ));
        fs::write(landing.path("s/x"), "").unwrap();
        assert!(matches!(
            landing.target("s/x/b.parquet", &mut seen()).unwrap(),
            Target::Blocked(_)
        ));
        fs::write(landing.path("s/a/c.parquet"), "").unwrap();
        assert_eq!(landing.target("s/a/c.parquet", &mut seen()).unwrap(), Target::File);
    }

    #[test]
    fn what_one_body_has_looked_at_counts_for_that_body_alone() {
        let dir = tempfile::tempdir().unwrap();
        let landing = Landing::open(&dir.path().join("l"), &dir.path().join("s")).unwrap();
        fs::create_dir_all(landing.path("s/there")).unwrap();
        let mut seen = Seen::default();
        for folder in ["s/there", "s/new/deep"] {
            let target = landing.target(&format!("{folder}/a.parquet"), &mut seen).unwrap();
            assert_eq!(target, Target::Free);
            // A file that stands in a folder is seen, unless the whole folder came since.
            fs::create_dir_all(landing.path(folder)).unwrap();
            fs::write(landing.path(folder).join("b.parquet"), "").unwrap();
        }
        let mut find = |landed| landing.target(landed, &mut seen).unwrap();
        assert_eq!(find("s/there/b.parquet"), Target::File);
        assert_eq!(find("s/new/deep/b.parquet"), Target::Free);
        let again = landing.target("s/new/deep/b.parquet", &mut Seen::default()).unwrap();
        assert_eq!(again, Target::File);
    }

    #[test]
    fn a_folder_is_known_to_be_durable_until_it_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let staging = dir.path().join("s");
        let landing = Landing::open(&dir.path().join("l"), &staging).unwrap();
        let promote = |name: &str| {
            fs::write(staging.join("1"), "one").unwrap();
            landing.promote(&staging.join("1"), name).unwrap();
        };
        let is_known = |name: &str| landing.durable().folders.contains(&landing.path(name));
        promote("s/d/m/f.parquet");
        assert!(!is_known("s/d/m") && !is_known("s"));
        landing.sync_folders_of(["s/d/m/f.parquet"].into_iter()).unwrap();
        assert!(is_known("s/d/m") && is_known("s/d") && is_known("s"));
        // A new name in a folder that is known.
        promote("s/d/n/f.parquet");
        assert!(!is_known("s/d/n") && !is_known("s/d") && is_known("s"));
        landing.sync_folders_of(["s/d/n/f.parquet"].into_iter()).unwrap();
        assert!(is_known("s/d/n") && is_known("s/d"));
        fs::remove_dir_all(landing.path("s/d/m")).unwrap();
        promote("s/d/m/g.parquet");
        assert!(!is_known("s/d/m") && !is_known("s/d"));
    }

    #[test]
    fn a_promotion_makes_folders_and_never_replaces() {
        let dir = tempfile::tempdir().unwrap();
        let staging = dir.path().join("s");
        let landing = Landing::open(&dir.path().join("l"), &staging).unwrap();
        fs::write(staging.join("1"), "one").unwrap();
        landing.promote(&staging.join("1"), "s/d/m/f.parquet").unwrap();
        fs::write(staging.join("2"), "two").unwrap();
        let e = landing.promote(&staging.join("2"), "s/d/m/f.parquet").unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(landing.path("s/d/m/f.parquet")).unwrap(), b"one");
        let mode = fs::metadata(landing.path("s/d")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, FOLDER_MODE);
    }
}
