"""A small client of a Barque hub, written from docs/HTTP.md alone, without a look at Barque's code.

It enrolls, ships one Parquet file under two paths and verifies every receipt; then it ships both again,
and a third path with a flipped byte. It prints "ok" or raises. Needs requests and cryptography.
Each run needs a new spoke NAME, for its key is forgotten at the end:

    python3 stranger.py "$(barque hub spoke add NAME --data HUB)" FILE.parquet [HUB/tls/ca.pem]
"""
import base64, hashlib, io, json, os, sys, tarfile, time
from types import SimpleNamespace
import requests
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PATHS = ["strange/land/2024/03/31/02/a.parquet", "strange/land/2024/03/31/03/ä b.parquet"]
DAMAGED_PATH = "strange/land/2024/03/31/04/c.parquet"

def sha256(data): return hashlib.sha256(data).hexdigest()
def b64(data): return base64.b64encode(data).decode()
def unb64(text): return base64.b64decode(text, validate=True)
def b64url(data): return base64.urlsafe_b64encode(data).decode().rstrip("=")
def dump(value): return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
def public(key): return key.public_key().public_bytes_raw()
def key_id(key): return sha256(public(key))[:16]
def lp(*parts): return b"".join(b"%d:%s" % (len(text), text) for text in (str(part).encode() for part in parts))
def new_id():
    number = int(time.time() * 1000) << 80 | int.from_bytes(os.urandom(10), "big")
    return "".join("0123456789ABCDEFGHJKMNPQRSTVWXYZ"[number >> bit & 31] for bit in range(125, -1, -5))
def timestamp(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"

def expect(got, wanted, what):
    if got != wanted: raise RuntimeError(f"{what}: {got} came where {wanted} was due")
def verify(public_key, signature, *signed):
    Ed25519PublicKey.from_public_bytes(unb64(public_key)).verify(unb64(signature), lp(*signed))

def bearer(client, path, digest):
    now = int(time.time())
    header = {"typ": "JWT", "alg": "EdDSA", "kid": key_id(client.key)}
    claims = {"sub": client.spoke, "aud": client.hub, "iat": now, "exp": now + 300, "jti": new_id(),
              "htm": "POST", "htu": path, "dig": digest}
    signed = b64url(dump(header)) + "." + b64url(dump(claims))
    return f"Bearer {signed}.{b64url(client.key.sign(signed.encode()))}"

def post(client, path, body, digest=None, content_type="application/json"):
    headers = {"Content-Type": content_type, "Authorization": bearer(client, path, digest) if digest else None}
    response = requests.post(client.url + path, data=body, headers=headers, verify=client.ca)
    expect(response.status_code, 200, response.text)
    return response.content

def enroll(token_text, ca):
    token = json.loads(base64.urlsafe_b64decode(token_text.strip().removeprefix("barque-enroll-") + "=="))
    client = SimpleNamespace(url=token["urls"][0], ca=ca, hub=token["hub"], spoke=token["spoke"],
                             key=Ed25519PrivateKey.generate(), series=new_id())
    parts = client.spoke, token["secret"], b64(public(client.key))
    proof = client.key.sign(lp("barque-enroll-v1", client.hub, *parts)).hex()
    request = dict(zip(("spoke_id", "secret", "public_key", "proof"), (*parts, proof)))
    answer = json.loads(post(client, "/api/v1/enroll", dump(request)))
    expect(sha256(unb64(answer["root"])), token["root"], "the root's digest")
    expect((answer["hub_id"], answer["spoke_id"]), (client.hub, client.spoke), "who enrolled where")
    client.root = answer["root"]
    return client

def verified_outcomes(client, receipt, answers, entries):
    """The receipt's outcomes by path, after the four rules under which it counts."""
    ack = json.loads(unb64(receipt["ack"]))
    node = ack["certificate"]
    expect(node["hub_id"], client.hub, "the certificate's hub")
    verify(client.root, node["signature"], "barque-node-v1",
           node["hub_id"], node["node_id"], node["public_key"], node["issued_at"])
    verify(node["public_key"], receipt["sig"], "barque-receipt-v2", sha256(unb64(receipt["ack"])))
    expect((ack["hub_id"], ack["spoke_id"]), (client.hub, client.spoke), "the receipt's hub and spoke")
    expect(ack["answers"], answers, "the request that the receipt answers")
    expect(sha256(receipt["outcomes"].encode()), ack["outcomes_sha256"], "the digest of the outcomes")
    # Not splitlines(): a path may hold U+2028. A line counts only with both path and digest of a file.
    lines = [json.loads(line) for line in receipt["outcomes"].split("\n") if line]
    ours = {(entry["path"], entry["sha256"]) for entry in entries}
    return {line["path"]: line["outcome"] for line in lines if (line["path"], line["sha256"]) in ours}

def reconcile(client, entries):
    body = dump({"series": client.series, "seq_head": entries[-1]["seq"], "as_of": None, "voids": [],
                 "seen_position": 0, "entries": entries})
    answer = json.loads(post(client, "/api/v1/sync/reconcile", body, sha256(body)))
    return (answer["missing"], answer["present"],
            verified_outcomes(client, answer["receipt"], {"reconcile": sha256(body)}, entries))

def bundle_header(client, entries, lines):
    digested = b"".join(lp(e["path"], e["sha256"], e["size_bytes"], e["seq"]) for e in entries)
    return {"version": 2, "bundle_id": new_id(), "spoke_id": client.spoke, "hub_id": client.hub,
            "created_at": timestamp(time.time()), "series": client.series, "seq_head": entries[-1]["seq"],
            "as_of": None, "voids": [], "replaces": None, "in_transit": [], "label": None, "encryption": None,
            "entry_count": len(entries), "total_bytes": sum(e["size_bytes"] for e in entries), "critical": [],
            "entries_sha256": sha256(lines), "entries_digest": sha256(digested), "key_id": key_id(client.key)}

def tar(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()

def push(client, entries, content):
    lines = b"".join(dump(entry) + b"\n" for entry in entries)
    header = bundle_header(client, entries, lines)
    signature = client.key.sign(lp("barque-bundle-v2", sha256(dump(header))))
    body = tar([("manifest.json", dump(header)), ("manifest.sig", signature), ("entries.jsonl", lines),
                *(("data/" + entry["path"], content) for entry in entries)])
    answer = post(client, "/api/v1/sync/bundles", body, header["entries_digest"],
                  "application/vnd.barque.bundle+tar")
    done = json.loads(answer.splitlines()[-1])["done"]  # the lines before it are hints
    expect(done["stopped"], None, "why not all was taken")
    return verified_outcomes(client, done["receipt"], {"bundle": header["bundle_id"]}, entries)

def main(token, file, ca=True):
    with open(file, "rb") as opened: content = opened.read()
    facts = dict(sha256=sha256(content), size_bytes=len(content), modified_at=timestamp(os.stat(file).st_mtime))
    *both, third = [{"path": path, "seq": seq, **facts} for seq, path in enumerate([*PATHS, DAMAGED_PATH], 1)]
    flipped = content[:9] + bytes([content[9] ^ 1]) + content[10:]
    here = dict.fromkeys(PATHS, "already_present")
    client = enroll(token, ca)
    expect(reconcile(client, both), (PATHS, [], {}), "missing, present and receipt before the bundle")
    expect(push(client, both, content), dict.fromkeys(PATHS, "registered"), "the first bundle")
    expect(reconcile(client, both), ([], PATHS, here), "missing, present and receipt after the bundle")
    expect(push(client, both, content), here, "the same again")
    expect(push(client, [third], flipped), {DAMAGED_PATH: "mismatch"}, "the flipped byte")
    print("ok")

if __name__ == "__main__": main(*sys.argv[1:])
