"""Prints every name that appears below a folder, as the kernel tells it (fanotify(7)).

Usage: fanotify.py FOLDER > names; needs root. Prints "watching" first; ends with its stdin.
"""
import ctypes, os, select, struct, sys

FAN_CLOEXEC, FAN_UNLIMITED_QUEUE, FAN_REPORT_DFID_NAME = 0x1, 0x10, 0xC00
FAN_MARK_ADD, FAN_MARK_FILESYSTEM = 0x1, 0x100
FAN_MOVED_TO, FAN_CREATE, FAN_ONDIR, FAN_Q_OVERFLOW = 0x80, 0x100, 0x40000000, 0x4000
AT_FDCWD = -100

libc = ctypes.CDLL(None, use_errno=True)


def checked(result, what):
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
    return result


folder = os.path.realpath(sys.argv[1])
root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
flags = FAN_CLOEXEC | FAN_UNLIMITED_QUEUE | FAN_REPORT_DFID_NAME
fan = checked(libc.fanotify_init(flags, os.O_RDONLY), "fanotify_init")
mask = ctypes.c_uint64(FAN_CREATE | FAN_MOVED_TO | FAN_ONDIR)
mark = FAN_MARK_ADD | FAN_MARK_FILESYSTEM
checked(libc.fanotify_mark(fan, mark, mask, AT_FDCWD, folder.encode()), "fanotify_mark")
print("watching", flush=True)


def parent_of(handle):
    """The path of the folder that a file handle names; none when it is gone."""
    fd = libc.open_by_handle_at(root, handle, os.O_RDONLY | 0o10000000)  # O_PATH
    if fd < 0:
        return None  # gone; the file system has other folders than ours, which never go
    path = os.readlink(f"/proc/self/fd/{fd}")
    os.close(fd)
    return path


def tell(events):
    at = 0
    while at < len(events):
        length, _, _, meta_len, event_mask, _, _ = struct.unpack_from("=IBBHQii", events, at)
        if event_mask & FAN_Q_OVERFLOW:
            raise SystemExit("the queue ran over")
        info = at + meta_len
        # fanotify_event_info_fid: header (type, pad, len), fsid, then a file_handle and the name.
        handle_bytes, _ = struct.unpack_from("=Ii", events, info + 12)
        handle = events[info + 12 : info + 20 + handle_bytes]
        name = events[info + 20 + handle_bytes : at + length].split(b"\0")[0]
        parent = parent_of(ctypes.create_string_buffer(handle, len(handle)))
        if parent is not None and (parent + "/").startswith(folder + "/"):
            kind = "folder" if event_mask & FAN_ONDIR else "file"
            where = os.path.relpath(parent, folder)
            print(kind, where + "/" + name.decode(), flush=True)
        at += length


while True:
    ready, _, _ = select.select([fan, sys.stdin], [], [])
    if fan in ready:
        tell(os.read(fan, 1 << 20))
    elif sys.stdin in ready:
        print("done", flush=True)
        break
