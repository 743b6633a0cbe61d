"""Verifies a bundle, folder or plain tar, as docs/BUNDLE.md says: python3 verify_bundle.py PATH KEY_FILE
Written from that page alone, with hashlib, json and one Ed25519 library (cryptography).
Prints the word for what it found, `whole` if all holds; exit 0 only then."""
import base64, hashlib, json, os, re, stat, sys, tarfile
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ENTRIES_MAX, HEADER_MAX, LINE_MAX = 10_000_000, 1 << 20, 16 * 1024
KNOWN = set("version bundle_id spoke_id hub_id created_at series seq_head as_of voids replaces in_transit label "
            "entry_count total_bytes entries_sha256 entries_digest encryption critical key_id".split())

class Refused(Exception): pass
def lp(x):
    return str(len(x)).encode() + b":" + x

def hexsha(x):
    return hashlib.sha256(x).hexdigest()

def check_path(path):
    parts = path.split("/")
    good = path.endswith(".parquet") and len(path.encode()) <= 1017 and not re.search(r"[\x00-\x1f\x7f-\x9f\\]", path)
    good = good and all(p and not p.startswith(".") and len(p.encode()) <= 255 for p in parts)
    if not good or any(p.endswith(".parquet") for p in parts[:-1]):
        raise Refused("entries_malformed")

def member_of(entry):
    plain, digest = "data/" + entry["path"], hexsha(entry["path"].encode())
    stored = entry.get("stored_as")
    if stored not in (None, f"data/renamed/{digest[:2]}/{digest}"):
        raise Refused("entries_malformed")
    return stored or plain

def check_head(raw, sig, key):
    if len(raw) > HEADER_MAX:
        raise Refused("member_too_large")
    try:
        header = json.loads(raw)
    except ValueError:
        raise Refused("header_malformed")
    if header.get("version") != 2:
        raise Refused("unknown_version")
    if set(header.get("critical", [])) - KNOWN:
        raise Refused("unknown_critical")
    if header.get("encryption") is not None:
        raise Refused("encrypted")
    if header["entry_count"] > ENTRIES_MAX:
        raise Refused("too_many_entries")
    try:
        signed = lp(b"barque-bundle-v2") + lp(hexsha(raw).encode())
        Ed25519PublicKey.from_public_bytes(key).verify(sig, signed)
    except InvalidSignature:
        raise Refused("bad_signature")
    return header

def check_entries(raw, header):
    entries, digest, last = [], hashlib.sha256(), None
    for line in raw.splitlines(keepends=True):
        if len(line) > LINE_MAX or not line.endswith(b"\n"):
            raise Refused("entries_malformed")
        try:
            e = json.loads(line)
            fields = [e["path"].encode(), e["sha256"].encode(), str(e["size_bytes"]).encode(), str(e["seq"]).encode()]
        except (ValueError, KeyError, AttributeError):
            raise Refused("entries_malformed")
        check_path(e["path"])
        if last is not None and last >= fields[0]:
            raise Refused("entries_out_of_order")
        last = fields[0]
        digest.update(b"".join(map(lp, fields)))
        entries.append((member_of(e), e))
    sums = (len(entries), sum(e["size_bytes"] for _, e in entries), hexsha(raw), digest.hexdigest())
    names = ("entry_count", "total_bytes", "entries_sha256", "entries_digest")
    if sums != tuple(header[n] for n in names) or any(not 1 <= e["seq"] <= header["seq_head"] for _, e in entries):
        raise Refused("entries_mismatch")
    return entries

def check_file(entry, size, stream):
    if size != entry["size_bytes"]:
        raise Refused("member_size")
    digest = hashlib.sha256()
    while piece := stream.read(1 << 20):
        digest.update(piece)
    if digest.hexdigest() != entry["sha256"]:
        raise Refused("member_damaged")

def folder(root, key):
    read = lambda name: open(os.path.join(root, name), "rb").read()
    if not os.path.exists(os.path.join(root, "manifest.sig")):
        raise Refused("bundle_unfinished")
    header = check_head(read("manifest.json"), read("manifest.sig"), key)
    entries = dict(check_entries(read("entries.jsonl"), header))
    ours = {"manifest.json", "manifest.sig", "entries.jsonl", "ack.json", "ack.sig", "outcomes.jsonl"}
    for at, _, names in os.walk(root):
        for name in names:
            member = os.path.relpath(full := os.path.join(at, name), root)
            if not stat.S_ISREG(os.lstat(full).st_mode):
                raise Refused("member_not_a_file")
            if member not in ours and member not in entries:
                raise Refused("undeclared_member")
    for member, entry in entries.items():
        if not os.path.exists(full := os.path.join(root, member)):
            raise Refused("member_missing")
        check_file(entry, os.path.getsize(full), open(full, "rb"))

def stranger(name):
    escapes = name.startswith("/") or "\\" in name or ".." in name.split("/")
    return "path_escapes" if escapes else "undeclared_member"

def archive(path, key):
    try:
        tar = tarfile.open(path, "r:")
        members = tar.getmembers()
    except tarfile.TarError:
        raise Refused("ends_early")
    names = [m.name for m in members]
    if names[:3] != ["manifest.json", "manifest.sig", "entries.jsonl"]:
        raise Refused("member_out_of_order")
    raw, sig, lines = (tar.extractfile(m).read() for m in members[:3])
    header = check_head(raw, sig, key)
    entries = check_entries(lines, header)
    declared, found = [m for m, _ in entries], members[3:]
    tail = open(path, "rb").read()[members[-1].offset_data + -(-members[-1].size // 512) * 512:]
    if len(found) < len(entries) and (len(tail) < 512 or tail.strip(b"\0")):
        raise Refused("ends_early")
    for i, (member, entry) in enumerate(entries):
        if i >= len(found):
            raise Refused("member_missing")
        if not found[i].isreg():
            raise Refused("member_not_a_file")
        name = found[i].name
        if name != member:
            if name not in declared:
                raise Refused(stranger(name))
            later = member in names[3 + i:]
            raise Refused("duplicate_member" if name in declared[:i] else "member_out_of_order" if later else "member_missing")
        try:
            check_file(entry, found[i].size, tar.extractfile(found[i]))
        except tarfile.ReadError:
            raise Refused("ends_early")
    for extra in found[len(entries):]:
        raise Refused("duplicate_member" if extra.name in declared else stranger(extra.name))

if __name__ == "__main__":
    public = base64.b64decode(open(sys.argv[2]).read())
    try:
        (folder if os.path.isdir(sys.argv[1]) else archive)(sys.argv[1], public)
    except Refused as refused:
        print(refused)
        sys.exit(5)
    print("whole")
