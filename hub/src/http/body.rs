//! Request bodies: bounded JSON, and a stream that a blocking thread reads.

use std::io::{self, Read};
use std::time::Duration;

use axum::body::Body;
use barque_bundle::ErrorKind;
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::error::Refusal;

/// Most bytes of a JSON body.
pub const JSON_MAX_BYTES: usize = 32 * 1024 * 1024;
/// Chunks that wait between network and reader.
const WAITING: usize = 16;
/// What is still read of a body after an early answer, so that the answer is heard.
const DRAIN_BYTES: usize = 1024 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// The whole body, at most [`JSON_MAX_BYTES`], in bounded time between pieces.
pub async fn whole(body: Body, idle: Duration) -> Result<Bytes, Refusal> {
    let mut stream = body.into_data_stream();
    let mut out = bytes::BytesMut::new();
    loop {
        match tokio::time::timeout(idle, stream.next()).await {
            Ok(None) => return Ok(out.freeze()),
            Ok(Some(Ok(piece))) if out.len() + piece.len() <= JSON_MAX_BYTES => {
                out.extend_from_slice(&piece);
            }
            Ok(Some(Ok(_))) => {
                let detail = format!("the body is over {JSON_MAX_BYTES} bytes; send less at once");
                let refusal = Refusal::new(ErrorKind::TooLarge, "body_too_large", detail);
                return Err(Refusal { limit_bytes: Some(JSON_MAX_BYTES as u64), ..refusal });
            }
            Ok(Some(Err(e))) => {
                return Err(Refusal::new(ErrorKind::Invalid, "body_broken", e.to_string()));
            }
            Err(_) => {
                return Err(Refusal::new(
                    ErrorKind::Unknown,
                    "body_idle",
                    format!("nothing of the body came for {} s", idle.as_secs()),
                ));
            }
        }
    }
}

/// A JSON value, whatever the Content-Type says.
pub fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(bytes).map_err(|e| {
        Refusal::new(
            ErrorKind::Invalid,
            "body_malformed",
            format!("the body is not understood: {e}"),
        )
    })
}

/// A body as a blocking [`Read`]; a silent or broken body is an error, never an early end.
pub fn reader(body: Body, idle: Duration) -> BodyReader {
    let (out, pieces) = mpsc::channel(WAITING);
    tokio::spawn(pump(body, idle, out));
    BodyReader { pieces, current: Bytes::new() }
}

async fn pump(body: Body, idle: Duration, out: mpsc::Sender<io::Result<Bytes>>) {
    let mut stream = body.into_data_stream();
    loop {
        let piece = match tokio::time::timeout(idle, stream.next()).await {
            Ok(None) => return,
            Ok(Some(Ok(piece))) => Ok(piece),
            Ok(Some(Err(e))) => Err(io::Error::other(e)),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("nothing came for {} s", idle.as_secs()),
            )),
        };
        let failed = piece.is_err();
        if out.send(piece).await.is_err() {
            let _ = tokio::time::timeout(DRAIN_TIME, drain(stream)).await;
            return;
        }
        if failed {
            return;
        }
    }
}

async fn drain(mut stream: axum::body::BodyDataStream) {
    let mut drained = 0;
    while let Some(Ok(piece)) = stream.next().await {
        drained += piece.len();
        if drained > DRAIN_BYTES {
            return;
        }
    }
}

/// The reading half of [`reader`].
pub struct BodyReader {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
}

impl Read for BodyReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.pieces.blocking_recv() {
                None => return Ok(0),
                Some(piece) => self.current = piece?,
            }
        }
        let n = buffer.len().min(self.current.len());
        buffer[..n].copy_from_slice(&self.current.split_to(n));
        Ok(n)
    }
}
