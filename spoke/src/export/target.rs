//! Where a bundle may be written, and how a drive is told to keep it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use barque_bundle::path::printable;
use barque_bundle::platform::{self, Assured};

use crate::error::Error;

/// Folders of the system in which no drive stands; what lies below them is refused too.
const SYSTEM: [&str; 12] = [
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/proc",
    "/sbin",
    "/sys",
    "/usr",
    "/var/lib/dpkg",
    "/run/systemd",
];

/// The folder with all links resolved, if a bundle may be written there.
pub(super) fn check(folder: &Path, source: &Path, state: &Path) -> Result<PathBuf, Error> {
    let shown = || printable(&folder.display().to_string());
    let refuse = |why: &str| Err(Error::Usage(format!("cannot export to {}: {why}", shown())));
    let real = match std::fs::canonicalize(folder) {
        Ok(real) => real,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return refuse("there is no such folder; mount the drive first, or make the folder");
        }
        Err(e) => return Err(Error::io("cannot export to", folder)(e)),
    };
    if !real.is_dir() {
        return refuse(
            "it is no folder; give the drive's, the bundle gets a name of its own in it",
        );
    }
    let resolved = |p: &Path| std::fs::canonicalize(p).unwrap_or_else(|_| p.to_owned());
    if real.starts_with(resolved(source)) {
        return refuse("it lies inside the source, so the next scan would ship the bundle itself");
    }
    if real.starts_with(resolved(state)) {
        return refuse("it lies inside the state folder, which holds the ledger and the key");
    }
    // Memory that is lent out as a folder is no part of the system.
    let is_system = SYSTEM.iter().any(|s| real.starts_with(s)) && !real.starts_with("/dev/shm");
    if real == Path::new("/") || is_system {
        return refuse("it is a folder of the system; give the folder where the drive is mounted");
    }
    Ok(real)
}

/// What a drive's fault means for the files, and what to do.
pub(super) fn drive_fault(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::Drive { path, source }
}

/// Makes a file on the drive with these bytes, durable as far as the file system tells.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<Assured, Error> {
    let write = || {
        let mut file = File::create(path)?;
        io::Write::write_all(&mut file, bytes)?;
        platform::sync_if_known(&file)
    };
    write().map_err(drive_fault(path))
}

/// How what is written to a drive becomes durable.
pub(super) enum Durability {
    /// Each file for itself, and each folder.
    EachFile,
    /// The whole file system at once, by the drive's folder that was opened before the first write:
    /// it tells of every write that failed since.
    AtOnce(File),
}

impl Durability {
    pub fn of(drive: &Path) -> Result<Self, Error> {
        let open = File::open(drive).map_err(drive_fault(drive))?;
        Ok(match platform::reports_writes(&open) {
            true => Self::AtOnce(open),
            false => Self::EachFile,
        })
    }

    /// Makes one file durable, or leaves it to the end.
    pub fn file(&self, file: &File) -> io::Result<Assured> {
        match self {
            Self::EachFile => platform::sync_if_known(file),
            // What the sync of the whole does not tell of is told here.
            Self::AtOnce(_) => platform::write_out(file).map(|()| Assured::Yes),
        }
    }

    /// Makes all that was written durable, with the names of files and folders.
    pub fn all(&self, bundle: &Path, drive: &Path) -> Result<Assured, Error> {
        let Self::AtOnce(open) = self else { return sync_all(bundle, drive) };
        match platform::sync_file_system(open).map_err(drive_fault(drive))? {
            Assured::Yes => Ok(Assured::Yes),
            // It does not after all: then one by one, and nobody is told that it is sure.
            Assured::Unknown => {
                sync_files(bundle)?;
                sync_all(bundle, drive).map(|_| Assured::Unknown)
            }
        }
    }
}

fn sync_files(folder: &Path) -> Result<(), Error> {
    for item in std::fs::read_dir(folder).map_err(drive_fault(folder))? {
        let item = item.map_err(drive_fault(folder))?;
        if item.file_type().map_err(drive_fault(folder))?.is_dir() {
            sync_files(&item.path())?;
            continue;
        }
        let file = File::open(item.path()).map_err(drive_fault(folder))?;
        platform::sync_if_known(&file).map_err(drive_fault(folder))?;
    }
    Ok(())
}

/// Syncs a folder and those below it, deepest first, and then the whole file system.
pub(super) fn sync_all(bundle: &Path, folder: &Path) -> Result<Assured, Error> {
    let mut assured = Assured::Yes;
    if bundle.is_dir() {
        assured = assured.and(sync_folders(bundle)?);
    } else {
        let file = File::open(bundle).map_err(drive_fault(bundle))?;
        assured = assured.and(platform::sync_if_known(&file).map_err(drive_fault(bundle))?);
    }
    let drive = File::open(folder).map_err(drive_fault(folder))?;
    assured = assured.and(platform::sync_if_known(&drive).map_err(drive_fault(folder))?);
    Ok(assured.and(platform::sync_file_system(&drive).map_err(drive_fault(folder))?))
}

fn sync_folders(folder: &Path) -> Result<Assured, Error> {
    let mut assured = Assured::Yes;
    for item in std::fs::read_dir(folder).map_err(drive_fault(folder))? {
        let item = item.map_err(drive_fault(folder))?;
        if item.file_type().map_err(drive_fault(folder))?.is_dir() {
            assured = assured.and(sync_folders(&item.path())?);
        }
    }
    let own = File::open(folder).map_err(drive_fault(folder))?;
    Ok(assured.and(platform::sync_if_known(&own).map_err(drive_fault(folder))?))
}
