//! The only place for system calls that have no portable form, and the one way to sync.
//!
//! Linux is the home; each call has a fallback where a system lacks it.

mod uncached;
#[cfg(target_os = "linux")]
mod write_out;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

pub use uncached::Uncached;
#[cfg(target_os = "linux")]
pub use write_out::{begin_write_out, write_out};

/// Makes a file's bytes and length durable. All syncs of our own go through here.
///
/// A failed sync condemns what it covered: the kernel may have dropped the pages, so the caller
/// must not call again and believe a success.
pub fn sync(file: &File) -> io::Result<()> {
    counted(crate::fault::before_sync(file).and_then(|()| file.sync_all()))
}

fn counted(synced: io::Result<()>) -> io::Result<()> {
    let count = if synced.is_ok() { &SYNCS_DONE } else { &SYNCS_FAILED };
    count.fetch_add(1, Ordering::Relaxed);
    synced
}

/// Makes all that was written to the file system of an open folder durable, where
/// [`reports_writes`] says that this tells of every write that failed. Counted as one sync.
pub fn sync_all_of(folder: &File) -> io::Result<()> {
    let assured = crate::fault::before_sync(folder).and_then(|()| sync_file_system(folder));
    counted(match assured {
        Ok(Assured::Unknown) => Err(io::ErrorKind::Unsupported.into()),
        other => other.map(drop),
    })
}

static SYNCS_DONE: AtomicU64 = AtomicU64::new(0);
static SYNCS_FAILED: AtomicU64 = AtomicU64::new(0);

/// How many syncs this process has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syncs {
    pub done: u64,
    pub failed: u64,
}

/// Syncs of files and folders since the process started; those of SQLite are not counted.
pub fn syncs() -> Syncs {
    Syncs { done: SYNCS_DONE.load(Ordering::Relaxed), failed: SYNCS_FAILED.load(Ordering::Relaxed) }
}

/// Makes the names in a folder durable.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    sync(&File::open(folder)?)
}

/// Moves a file to a name that must not exist; the old name is gone on success.
///
/// Fails with `AlreadyExists` when it does, and never replaces (invariant V2).
pub fn rename_without_replacing(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, rustix::fs::RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        Err(e) => Err(e.into()),
    }
}

/// Opens a regular file for reading without following a link and without waiting on a FIFO.
///
/// Fails with `InvalidInput` for anything that is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

/// A folder below which files are opened without following a link in any part of their path.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    folder: File,
}

/// Opens a name for its metadata alone.
#[cfg(target_os = "linux")]
const LOOK: OFlags = OFlags::PATH;
#[cfg(not(target_os = "linux"))]
const LOOK: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);

impl Root {
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), folder: File::open(path)? })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a regular file for reading, as [`open_regular`] does.
    pub fn open_regular(&self, relative: &str) -> io::Result<File> {
        self.open_with_metadata(relative).map(|(file, _)| file)
    }

    /// [`Root::open_regular`], with the metadata of the open file.
    pub fn open_with_metadata(&self, relative: &str) -> io::Result<(File, fs::Metadata)> {
        let file = self.at(relative, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let metadata = file.metadata()?;
        match metadata.is_file() {
            true => Ok((file, metadata)),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        }
    }

    /// [`Root::open_with_metadata`] of a file that is read soon, which the system is asked to begin
    /// with, for its first 32 MiB; none where it cannot be opened.
    pub fn read_ahead(&self, relative: &str) -> Option<(File, fs::Metadata)> {
        let opened = self.open_with_metadata(relative).ok()?;
        #[cfg(target_os = "linux")]
        {
            const LEN: Option<std::num::NonZeroU64> = std::num::NonZeroU64::new(32 << 20);
            let _ = rustix::fs::fadvise(&opened.0, 0, LEN, rustix::fs::Advice::WillNeed);
        }
        Some(opened)
    }

    /// The metadata of what stands there, without opening it.
    pub fn metadata(&self, relative: &str) -> io::Result<fs::Metadata> {
        self.at(relative, LOOK)?.metadata()
    }

    #[cfg(target_os = "linux")]
    fn at(&self, relative: &str, flags: OFlags) -> io::Result<File> {
        use rustix::fs::{ResolveFlags, openat2};
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match openat2(&self.folder, relative, flags, Mode::empty(), resolve) {
            Ok(fd) => Ok(File::from(fd)),
            // An old kernel, or a sandbox that does not know the call.
            Err(Errno::NOSYS | Errno::PERM) => self.step_by_step(relative, flags),
            Err(e) => Err(e.into()),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn at(&self, relative: &str, flags: OFlags) -> io::Result<File> {
        self.step_by_step(relative, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC)
    }

    /// Opens folder after folder, none of which may be a link.
    fn step_by_step(&self, relative: &str, flags: OFlags) -> io::Result<File> {
        let step = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut folder = self.folder.try_clone()?;
        let mut segments = relative.split('/').peekable();
        while let Some(segment) = segments.next() {
            let flags = if segments.peek().is_some() { step } else { flags };
            folder = File::from(rustix::fs::openat(&folder, segment, flags, Mode::empty())?);
        }
        Ok(folder)
    }
}

/// Begins nothing: the sync does all of it.
#[cfg(not(target_os = "linux"))]
pub fn begin_write_out(_: &File, _: u64, _: u64) -> io::Result<()> {
    Ok(())
}

/// Writes a file's bytes to the disk, where the system has no call for that alone.
#[cfg(not(target_os = "linux"))]
pub fn write_out(file: &File) -> io::Result<()> {
    file.sync_all()
}

/// How a sync of a drive ended: some file systems do not know the call (exFAT by FUSE for folders,
/// network shares), which is said and is no fault of the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assured {
    Yes,
    /// The file system does not take the call (EINVAL, ENOTTY, ENOTSUP, ENOSYS).
    Unknown,
}

impl Assured {
    /// Yes only when both are.
    pub fn and(self, other: Self) -> Self {
        if self == Self::Yes { other } else { self }
    }
}

/// Makes everything on the file system that holds an open folder durable (syncfs(2)).
#[cfg(target_os = "linux")]
pub fn sync_file_system(folder: &File) -> io::Result<Assured> {
    match rustix::fs::syncfs(folder) {
        Ok(()) => Ok(Assured::Yes),
        Err(e) if is_unknown_call(&e.into()) => Ok(Assured::Unknown),
        Err(e) => Err(e.into()),
    }
}

/// [`sync_file_system`], where the system has no such call: files and folders were synced one by
/// one.
#[cfg(not(target_os = "linux"))]
pub fn sync_file_system(_folder: &File) -> io::Result<Assured> {
    Ok(Assured::Yes)
}

/// Whether a sync of the whole file system tells of every write that failed since the folder was
/// opened, so that files that were written out ([`write_out`]) need none of their own: ext4, xfs and
/// btrfs, from Linux 5.17 on (syncfs(2); before, it did not tell of a commit that failed).
#[cfg(target_os = "linux")]
pub fn reports_writes(folder: &File) -> bool {
    const KNOWN: [i64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];
    let kind = rustix::fs::fstatfs(folder).map_or(0, |s| i128::from(s.f_type));
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let version = (numbers.next().and_then(Result::ok), numbers.next().and_then(Result::ok));
    KNOWN.iter().any(|k| i128::from(*k) == kind) && version >= (Some(5), Some(17))
}

/// [`reports_writes`], where the system has no such call.
#[cfg(not(target_os = "linux"))]
pub fn reports_writes(_folder: &File) -> bool {
    false
}

/// [`sync`], where a file system may not know it; a fault of the drive (EIO) stays an error.
pub fn sync_if_known(file: &File) -> io::Result<Assured> {
    match sync(file) {
        Ok(()) => Ok(Assured::Yes),
        Err(e) if is_unknown_call(&e) => Ok(Assured::Unknown),
        Err(e) => Err(e),
    }
}

/// Whether an error says that a call is not known, rather than that it failed.
fn is_unknown_call(e: &io::Error) -> bool {
    let codes = [Errno::INVAL, Errno::NOTTY, Errno::OPNOTSUPP, Errno::NOSYS, Errno::NOTSUP];
    e.raw_os_error().is_some_and(|c| codes.iter().any(|e| e.raw_os_error() == c))
}

/// File systems that lie in memory, or whose data the system keeps in memory elsewhere too
/// (statfs(2)): tmpfs, ramfs, FUSE, overlayfs.
#[cfg(target_os = "linux")]
const NOT_A_DISK: [i64; 4] = [0x0102_1994, 0x8584_58f6, 0x6573_5546, 0x794c_7630];

impl Root {
    /// Opens a regular file so that what is read comes from the drive and not from memory; none
    /// where the file system cannot tell.
    #[cfg(target_os = "linux")]
    pub fn open_uncached(&self, relative: &str) -> io::Result<Option<File>> {
        let known = rustix::fs::fstatfs(&self.folder)?.f_type;
        if NOT_A_DISK.iter().any(|t| i128::from(*t) == i128::from(known)) {
            return Ok(None);
        }
        match self.at(relative, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::DIRECT) {
            Ok(file) if file.metadata()?.is_file() => Ok(Some(file)),
            Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
            Err(e) if is_unknown_call(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// [`Root::open_uncached`], where the system has no such call.
    #[cfg(not(target_os = "linux"))]
    pub fn open_uncached(&self, _relative: &str) -> io::Result<Option<File>> {
        Ok(None)
    }
}

/// Bytes that a file system gives out at once: what a small file takes.
pub fn block_bytes(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_frsize.max(512))
}

/// Takes the advisory lock of a file; false when another process holds it.
///
/// The kernel drops the lock with the process, so none outlives its owner.
pub fn try_lock(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file.as_fd(), rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Bytes that an unprivileged writer can still put on the file system that holds `path`.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Bytes of the file system that holds `path`, used or not.
pub fn total_bytes(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_blocks.saturating_mul(stat.f_frsize))
}

/// Whether the file system that holds `path` lets nothing be written.
pub fn is_read_only(path: &Path) -> bool {
    rustix::fs::statvfs(path)
        .is_ok_and(|s| s.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// The mount that holds `path` (or, while it does not exist, its folder), if it is read-only.
pub fn read_only_mount(path: &Path) -> Option<PathBuf> {
    let there = path.ancestors().find(|p| p.exists())?;
    is_read_only(there)
        .then(|| mount_of(&fs::canonicalize(there).unwrap_or_else(|_| there.to_owned())))
}

/// The deepest mount point above a path, as Linux lists them (`proc(5)`, mountinfo); the path
/// itself where there is no such list.
fn mount_of(path: &Path) -> PathBuf {
    let list = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = list.lines().filter_map(|line| line.split(' ').nth(4)).map(unescaped);
    let above = mounts.filter(|m| path.starts_with(m));
    above.max_by_key(|m| m.as_os_str().len()).unwrap_or_else(|| path.to_owned())
}

/// Blanks, tabs, line ends and backslashes stand there as `\\040` and the like.
fn unescaped(text: &str) -> PathBuf {
    let mut out = text.to_owned();
    for (code, plain) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        out = out.replace(code, plain);
    }
    out.into()
}

/// Lets the system ask a silent peer now and then whether it is still there (a minute, then every
/// 20 s): a connection whose other end has vanished ends.
pub fn keep_alive(socket: &impl std::os::fd::AsFd) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, std::time::Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(socket, std::time::Duration::from_secs(20))?;
    Ok(())
}

/// Lets other threads run before this one from now on, where the system gives a thread a priority of
/// its own (Linux); elsewhere nothing happens. Only a privileged process can take it back.
pub fn give_way() {
    // Number 0 is the calling thread on Linux, and the whole process elsewhere.
    #[cfg(target_os = "linux")]
    if rustix::process::getpriority_process(None).is_ok_and(|now| now < GIVES_WAY) {
        let _ = rustix::process::setpriority_process(None, GIVES_WAY);
    }
}

/// Stops this process until it is told to continue, as a job is stopped by its shell.
#[cfg(feature = "fault")]
pub fn stop_this_process() -> io::Result<()> {
    use rustix::process::{Signal, getpid, kill_process};
    Ok(kill_process(getpid(), Signal::STOP)?)
}

/// About a tenth of the time of a thread that does not give way.
#[cfg(target_os = "linux")]
const GIVES_WAY: i32 = 10;

/// Raises how many files this process may have open as far as the system lets it.
pub fn raise_open_files() -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(())
}

/// The user that this process acts as.
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// This machine's name, for certificates and addresses.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Whether the error says that there is no room: disk, quota or file size limit.
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Makes an empty file that only this user can read, unless the file exists.
///
/// SQLite gives its journals the mode of the database, so this comes before its first opening.
pub fn create_private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Whether the error says that a link stood where none is followed.
pub fn is_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}

/// Writes a file whole, durable and with this mode, or leaves the old one: temporary, sync, rename.
pub fn write_durably(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let folder = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = folder.join(format!(".{name}.{}", std::process::id()));
    let write = || {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(&temporary)?;
        file.write_all(bytes)?;
        sync(&file)?;
        fs::rename(&temporary, path)?;
        sync_folder(folder)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

/// Makes a folder and those above it with this mode, and makes their names durable.
pub fn create_folders_durably(folder: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().filter(|p| !p.as_os_str().is_empty());
    if let Some(parent) = parent {
        create_folders_durably(parent, mode)?;
    }
    match fs::DirBuilder::new().mode(mode).create(folder) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
        Err(e) => return Err(e),
    }
    sync_folder(parent.unwrap_or(Path::new(".")))
}

/// A path to a Unix socket that fits the 108 bytes of a socket address, however deep it lies.
///
/// It goes through the open folder, so it holds as long as this value lives.
pub struct ShortPath {
    path: PathBuf,
    _folder: Option<File>,
}

/// Longest path that a socket address takes, without its closing zero.
const SOCKET_PATH_MAX_BYTES: usize = 107;

impl ShortPath {
    pub fn new(path: &Path) -> io::Result<Self> {
        if path.as_os_str().len() <= SOCKET_PATH_MAX_BYTES {
            return Ok(Self { path: path.to_owned(), _folder: None });
        }
        let folder = File::open(path.parent().unwrap_or(Path::new(".")))?;
        let number = std::os::fd::AsRawFd::as_raw_fd(&folder);
        let name = path.file_name().unwrap_or_default();
        let path = PathBuf::from(format!("/proc/self/fd/{number}")).join(name);
        Ok(Self { path, _folder: Some(folder) })
    }

    pub fn as_path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_rename_never_replaces() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&a, "a").unwrap();
        fs::write(&b, "b").unwrap();
        let e = rename_without_replacing(&a, &b).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&b).unwrap(), b"b");
        fs::remove_file(&b).unwrap();
        rename_without_replacing(&a, &b).unwrap();
        assert!(!a.exists() && b.exists());
    }

    #[test]
    fn links_folders_and_fifos_are_not_opened_and_nobody_waits() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link, fifo) =
            (dir.path().join("real"), dir.path().join("link"), dir.path().join("fifo"));
        fs::write(&real, "x").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(open_regular(&real).is_ok());
        for odd in [link, fifo, dir.path().to_owned()] {
            assert!(open_regular(&odd).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn no_part_of_a_path_below_a_root_may_be_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        fs::write(root.join("a/b/f"), "in").unwrap();
        fs::write(dir.path().join("outside/f"), "out").unwrap();
        std::os::unix::fs::symlink(dir.path().join("outside"), root.join("a/link")).unwrap();
        std::os::unix::fs::symlink("b", root.join("a/near")).unwrap();
        let root = Root::open(&root).unwrap();
        assert!(root.open_regular("a/b/f").is_ok());
        assert_eq!(root.metadata("a/b/f").unwrap().len(), 2);
        assert!(root.step_by_step("a/b/f", OFlags::RDONLY).is_ok());
        for linked in ["a/link/f", "a/near/f"] {
            assert!(root.open_regular(linked).is_err(), "{linked}");
            assert!(root.metadata(linked).is_err(), "{linked}");
            assert!(root.step_by_step(linked, OFlags::RDONLY).is_err(), "{linked}");
        }
        assert!(root.open_regular("a/b").is_err());
    }

    #[test]
    fn a_lock_is_held_by_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = File::create(&path).unwrap();
        let second = File::open(&path).unwrap();
        assert!(try_lock(&first).unwrap());
        assert!(!try_lock(&second).unwrap());
        drop(first);
        assert!(try_lock(&second).unwrap());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_gives_way_does_so_alone() {
        // Behind the name in brackets, the 17th field is the nice value (proc(5)).
        let nice = || {
            let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
            let (_, rest) = stat.rsplit_once(") ").unwrap();
            rest.split(' ').nth(16).unwrap().parse::<i32>().unwrap()
        };
        let before = nice();
        let other = std::thread::spawn(move || {
            give_way();
            nice()
        });
        assert_eq!(other.join().unwrap(), before.max(GIVES_WAY));
        assert_eq!(nice(), before);
    }
}
