//! One large file in pieces (draft-ietf-httpbis-resumable-upload-09): opened, then appended where
//! the hub's bytes end.

use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::sync::Arc;

use barque_bundle::header::Signed;
use barque_bundle::platform::Root;
use barque_bundle::receipt::Answers;
use barque_bundle::wire::{self, UploadAnswer, UploadRequest};
use barque_bundle::{Entry, Header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::body::{CHUNKS_WAITING, ChannelWriter, Moved, Parcel, Progress, open_unchanged};
use super::{CallError, Heard, HubClient, Sent, WRITER_WAIT, carrying, streamed};

/// Where an upload stands after a call.
pub enum Reached {
    /// The hub has so many bytes from the start.
    Offset(u64),
    /// It needs no more.
    Done(Box<Sent>),
}

/// A piece to append.
pub struct Piece {
    pub parcel: Parcel,
    pub from: u64,
    pub to: u64,
}

impl HubClient {
    /// Opens an upload of the bundle's one file, or goes on with what the hub kept of it.
    pub async fn open_upload(
        &self,
        header: &Signed<Header>,
        entry: &Entry,
    ) -> Result<Reached, CallError> {
        let request = UploadRequest {
            manifest: BASE64.encode(&header.bytes),
            sig: BASE64.encode(&header.sig),
            entry: entry.clone(),
        };
        let body = serde_json::to_vec(&request).map_err(|e| CallError::Client(e.to_string()))?;
        let len = body.len() as u64;
        let (url, token) = self.addressed("POST", wire::UPLOADS, header);
        let request = self
            .http()
            .post(&url)
            .bearer_auth(token)
            .header(wire::REQUEST_ID, self.request_id())
            .header("content-type", "application/json")
            .timeout(self.way.stall * 2)
            .body(body);
        let response = request.send().await.map_err(|e| self.failed(&url, &e))?;
        let judged = self.judge_any(&url, response).await.map_err(|e| carrying(e, len));
        let heard = self.with_hub_time(&url, judged)?;
        self.reached(header, heard).map_err(|e| carrying(e, len))
    }

    /// Sends bytes of a file from one offset to another; the last piece is answered with the
    /// receipt. A file that has changed since it was hashed is not sent.
    pub async fn append(
        &self,
        header: &Signed<Header>,
        source: Arc<Root>,
        piece: Piece,
        progress: Arc<dyn Progress>,
    ) -> Result<Reached, CallError> {
        let path = format!("{}/{}", wire::UPLOADS, header.value.bundle_id);
        let (url, token) = self.addressed("PATCH", &path, header);
        let moved = Arc::new(Moved::new(&self.line));
        let (out, pieces) = tokio::sync::mpsc::channel(CHUNKS_WAITING);
        let pace = self.way.pace.clone();
        let sink = ChannelWriter::new(out, Arc::clone(&moved), progress, pace);
        let is_last = piece.to == piece.parcel.entry.size_bytes;
        let (from, len) = (piece.from, piece.to - piece.from);
        let writing = tokio::task::spawn_blocking(move || write_piece(sink, &source, &piece));
        let request = self
            .http()
            .patch(&url)
            .bearer_auth(token)
            .header(wire::REQUEST_ID, self.request_id())
            .header("content-type", wire::PARTIAL_UPLOAD)
            .header("content-length", len)
            .header(wire::UPLOAD_OFFSET, from)
            .header(wire::UPLOAD_COMPLETE, if is_last { "?1" } else { "?0" })
            .body(streamed(pieces));
        let stalled = || self.stalled(&url);
        let answer = async {
            let response = moved
                .unless_stalled(self.way.stall, request.send())
                .await
                .ok_or_else(stalled)?
                .map_err(|e| self.failed(&url, &e))?;
            let judged = self.judge_any(&url, response);
            moved.unless_stalled(self.way.stall, judged).await.ok_or_else(stalled)?
        };
        let answer = answer.await;
        let _ = tokio::time::timeout(WRITER_WAIT, writing).await;
        let answer = answer.map_err(|e| carrying(e, len));
        let heard = self.with_hub_time(&url, answer)?;
        self.reached(header, heard).map_err(|e| carrying(e, len))
    }

    fn addressed(&self, method: &str, path: &str, header: &Signed<Header>) -> (String, String) {
        (self.url(path), self.token(method, path, header.value.entries_digest))
    }

    fn reached(&self, header: &Signed<Header>, heard: Heard) -> Result<Reached, CallError> {
        let not_ours = || self.not_ours(&heard);
        if heard.status != 200 {
            return heard.offset.map(Reached::Offset).ok_or_else(not_ours);
        }
        let answer: UploadAnswer = serde_json::from_slice(&heard.bytes).map_err(|_| not_ours())?;
        let answers = Answers::Bundle(header.value.bundle_id);
        let receipt = self.open(answer.receipt, answers)?;
        Ok(Reached::Done(Box::new(Sent { receipt, stopped: answer.stopped })))
    }
}

/// Writes the piece; a file that is not as it was breaks the body off.
fn write_piece(mut sink: ChannelWriter, source: &Root, piece: &Piece) -> io::Result<()> {
    let (out, moved) = (sink.out.clone(), Arc::clone(&sink.moved));
    let write = || -> io::Result<()> {
        let changed = || io::Error::other("the file has changed since it was hashed");
        let mut file = open_unchanged(source, &piece.parcel).ok_or_else(changed)?;
        file.seek(SeekFrom::Start(piece.from))?;
        let mut left = file.take(piece.to - piece.from);
        let mut sent = 0;
        loop {
            match sink.pass_on(&mut left)? {
                0 => break,
                n => sent += n as u64,
            }
        }
        if sent == piece.to - piece.from { sink.flush() } else { Err(changed()) }
    };
    let mut write = write;
    let written = write();
    moved.whole();
    if let Err(e) = &written {
        let _ = out.blocking_send(Err(io::Error::new(e.kind(), e.to_string())));
    }
    written
}
