//! Bytes of one file handed to the disk: the one system call here that no crate offers.

#![expect(unsafe_code, reason = "sync_file_range(2) is in no crate with a safe interface")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

/// Writes a file's bytes to the disk, waits for it and tells what failed, the allocation of blocks
/// too, as fsync(2) would; without a commit of the journal and without a flush of the disk's cache
/// (sync_file_range(2)). What makes it durable comes behind.
///
/// Where the system does not let the call through (ENOSYS, EPERM: a sandbox), it is an fsync, which
/// does more. A sync of the whole file system does not tell of blocks that could not be allocated on ext4: its
/// write-out keeps that to itself.
pub fn write_out(file: &File) -> io::Result<()> {
    const ALL: libc::c_uint = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: it takes numbers alone, and the descriptor is open as long as `file` is borrowed.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, ALL) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            e if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => super::sync(file),
            e => Err(e),
        },
    }
}

/// Begins to hand a range of a file to the disk and does not wait for it, so that a sync soon after
/// finds little left; what fails here is as good as a sync that failed. Where the system does not let
/// the call through nothing is begun.
pub fn begin_write_out(file: &File, from: u64, len: u64) -> io::Result<()> {
    let range = |n| libc::off64_t::try_from(n).unwrap_or(libc::off64_t::MAX);
    let (fd, from, len) = (file.as_raw_fd(), range(from), range(len));
    // SAFETY: as above.
    match unsafe { libc::sync_file_range(fd, from, len, libc::SYNC_FILE_RANGE_WRITE) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            e if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => Ok(()),
            e => Err(e),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_out_and_a_pipe_cannot_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"bytes").unwrap();
        write_out(&File::open(&path).unwrap()).unwrap();
        begin_write_out(&File::open(&path).unwrap(), 1, 2).unwrap();
        let (reader, _writer) = std::io::pipe().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(reader));
        assert_eq!(write_out(&pipe).unwrap_err().raw_os_error(), Some(libc::ESPIPE));
        assert!(begin_write_out(&pipe, 0, 1).is_err());
    }
}
