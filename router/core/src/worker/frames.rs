//! `Run` without gRPC, with a worker of this machine: what the contract says under Frames. Used by `stream` in place of a call, on one task.

use std::io;
use std::path::Path;

use bytes::{Buf, BufMut, BytesMut};
use penstock_proto::{StepResult, ToWorker};
use prost::Message;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tonic::{Code, Status};

use super::endpoint::frames_socket;

/// Length of the message, and a status code of gRPC.
const HEAD: usize = 8;

/// Room that is made for what comes next.
const READ_AT_ONCE: usize = 16 << 10;

/// One call.
pub(super) struct Frames {
    stream: UnixStream,
    incoming: BytesMut,
    /// What the socket had no room for yet.
    outgoing: BytesMut,
}

impl Frames {
    pub async fn connect(socket: &Path) -> io::Result<Self> {
        Ok(Self::over(UnixStream::connect(frames_socket(socket)).await?))
    }

    fn over(stream: UnixStream) -> Self {
        Self { stream, incoming: BytesMut::new(), outgoing: BytesMut::new() }
    }

    /// Waits until the worker has begun the call.
    pub async fn begun(&mut self) -> Result<(), Status> {
        self.next().await.map(drop)
    }

    /// Never waits. That the worker is gone is noticed by `next`.
    pub fn send(&mut self, message: &ToWorker) {
        self.outgoing.reserve(HEAD + message.encoded_len());
        let length = u32::try_from(message.encoded_len()).expect("a plan is shorter than 4 GiB");
        self.outgoing.put_u32_le(length);
        self.outgoing.put_u32_le(0);
        message.encode(&mut self.outgoing).expect("there is room for it");
        let _ = self.flush();
    }

    /// The next result. Loses nothing when dropped half-way.
    pub async fn next(&mut self) -> Result<StepResult, Status> {
        loop {
            if let Some(result) = self.frame()? {
                return Ok(result);
            }
            let interest = match self.outgoing.is_empty() {
                true => Interest::READABLE,
                false => Interest::READABLE | Interest::WRITABLE,
            };
            let ready = self.stream.ready(interest).await.map_err(|_| broken())?;
            if ready.is_writable() {
                // A broken connection is read to its end: the worker may have said why.
                let _ = self.flush();
            }
            if ready.is_readable() {
                self.incoming.reserve(READ_AT_ONCE);
                match self.stream.try_read_buf(&mut self.incoming) {
                    Ok(0) => return Err(broken()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return Err(broken()),
                }
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.outgoing.is_empty() {
            match self.stream.try_write(&self.outgoing) {
                Ok(written) => self.outgoing.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => {
                    self.outgoing.clear();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Takes the next frame, if all of it is there.
    fn frame(&mut self) -> Result<Option<StepResult>, Status> {
        let Some(mut head) = self.incoming.get(..HEAD) else { return Ok(None) };
        let (length, code) = (head.get_u32_le() as usize, head.get_u32_le());
        if self.incoming.len() < HEAD + length {
            self.incoming.reserve(HEAD + length - self.incoming.len());
            return Ok(None);
        }
        self.incoming.advance(HEAD);
        let message = self.incoming.split_to(length);
        if code != 0 {
            let code = Code::from_i32(code.try_into().unwrap_or(i32::MAX));
            return Err(Status::new(code, String::from_utf8_lossy(&message)));
        }
        let result = StepResult::decode(message);
        result.map(Some).map_err(|error| Status::internal(format!("it sent what is no result: {error}")))
    }
}

fn broken() -> Status {
    Status::unavailable("its connection broke")
}

#[cfg(test)]
mod tests {
    use penstock_proto::StepPlan;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn framed(code: u32, message: &[u8]) -> Vec<u8> {
        let mut frame = (message.len() as u32).to_le_bytes().to_vec();
        frame.extend(code.to_le_bytes());
        frame.extend(message);
        frame
    }

    fn result(number: u64) -> Vec<u8> {
        let sampled = vec![7; 40_000].into();
        framed(0, &StepResult { number, sampled, ..StepResult::default() }.encode_to_vec())
    }

    #[tokio::test]
    async fn results_come_whole_however_they_are_cut() {
        let (mut worker, router) = UnixStream::pair().unwrap();
        let mut frames = Frames::over(router);
        let sending = tokio::spawn(async move {
            worker.write_all(&framed(0, b"")).await.unwrap();
            let both = [result(1), result(2)].concat();
            for part in both.chunks(7_777) {
                worker.write_all(part).await.unwrap();
                tokio::task::yield_now().await;
            }
            worker.write_all(&framed(10, "lost rank 1".as_bytes())).await.unwrap();
        });
        frames.begun().await.unwrap();
        for number in [1, 2] {
            let result = frames.next().await.unwrap();
            assert_eq!((result.number, result.sampled.len()), (number, 40_000));
        }
        let status = frames.next().await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Aborted, "lost rank 1"));
        sending.await.unwrap();
    }

    #[tokio::test]
    async fn what_the_socket_has_no_room_for_is_sent_while_results_are_waited_for() {
        let (mut worker, router) = UnixStream::pair().unwrap();
        let mut frames = Frames::over(router);
        let plan = StepPlan { number: 3, tokens: vec![9; 4 << 20].into(), ..StepPlan::default() };
        let message = ToWorker { plan: Some(plan), masks: None };
        (0..3).for_each(|_| frames.send(&message));
        let one = framed(0, &message.encode_to_vec());
        let reading = tokio::spawn(async move {
            let mut all = vec![0; 3 * one.len()];
            worker.read_exact(&mut all).await.unwrap();
            assert!(all == [one.as_slice(); 3].concat());
            worker.write_all(&result(3)).await.unwrap();
        });
        assert_eq!(frames.next().await.unwrap().number, 3);
        reading.await.unwrap();
    }

    #[tokio::test]
    async fn an_end_is_told_from_a_result() {
        for (sent, why) in [
            (result(1)[..100].to_vec(), "its connection broke"),
            (framed(0, &[0xff; 3]), "it sent what is no result"),
        ] {
            let (mut worker, router) = UnixStream::pair().unwrap();
            worker.write_all(&sent).await.unwrap();
            drop(worker);
            let status = Frames::over(router).next().await.unwrap_err();
            assert!(status.message().starts_with(why), "{status}");
        }
    }
}
