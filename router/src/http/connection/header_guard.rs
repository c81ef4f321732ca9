//! What hyper lets pass in a head of HTTP/1.1 and another server in front may read differently, which is what request
//! smuggling lives on: a line that ends with a bare line feed (RFC 9112, 2.2), and a length beside a transfer coding
//! (6.1). Neither can be seen once a head is parsed. `HeaderGuard` looks at the bytes on their way to hyper, and puts a NUL
//! where one of them stands, so that hyper refuses the head with status 400 and closes. So it does where it cannot follow
//! what hyper would: a length, a coding or the size of a chunk that is padded beyond what is kept of a line. Everything else
//! passes as it is, and hyper alone decides what it means.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is kept of a line: enough for the headers that are looked for.
const KEPT: usize = 64;

pub struct HeaderGuard<T> {
    inner: T,
    scanner: Scanner,
}

impl<T> HeaderGuard<T> {
    pub fn new(inner: T) -> Self {
        Self { inner, scanner: Scanner::default() }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for HeaderGuard<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        self.scanner.scan(&mut buffer.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for HeaderGuard<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// Follows the requests of one connection. It knows where a body ends as long as its head leaves no doubt, and looks
/// at nothing more once it does not: hyper closes after such a head.
#[derive(Default)]
struct Scanner {
    at: At,
    line: Line,
    /// What the head has said so far of its body.
    length: Option<u64>,
    coding: Option<Coding>,
    /// A line other than empty ones has come, which may stand before a head (RFC 9112, 2.2).
    begun: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum At {
    /// In a line of a head, or of the trailers behind a chunked body.
    #[default]
    Head,
    Trailers,
    /// In a body, with so much of it to come.
    Body(u64),
    /// In the line that says the size of a chunk.
    ChunkSize,
    /// In a chunk, its line end included.
    Chunk(u64),
    /// HTTP/2, or in doubt.
    Beyond,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Coding {
    Chunked,
    Other,
}

/// The line that is being read, without its end.
#[derive(Default)]
struct Line {
    kept: Vec<u8>,
    /// All of it was kept.
    length: usize,
    ends_in_cr: bool,
}

impl Line {
    fn extend(&mut self, bytes: &[u8]) {
        self.length += bytes.len();
        self.ends_in_cr = bytes.last().map_or(self.ends_in_cr, |&byte| byte == b'\r');
        self.kept.extend_from_slice(&bytes[..bytes.len().min(KEPT - self.kept.len())]);
    }

    /// Without its carriage return; `None` when it was too long to be kept.
    fn text(&self) -> Option<&[u8]> {
        (self.length <= KEPT).then(|| self.kept.strip_suffix(b"\r").unwrap_or(&self.kept))
    }

    fn is_empty(&self) -> bool {
        self.length == usize::from(self.ends_in_cr)
    }

    /// Name and value of a header.
    fn field(&self) -> Option<(&[u8], &[u8])> {
        let colon = self.kept.iter().position(|&byte| byte == b':')?;
        Some((&self.kept[..colon], self.kept[colon + 1..].trim_ascii()))
    }

    fn clear(&mut self) {
        self.kept.clear();
        (self.length, self.ends_in_cr) = (0, false);
    }
}

impl Scanner {
    fn scan(&mut self, bytes: &mut [u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = match self.at {
                At::Beyond => return,
                At::Body(left) => {
                    let (taken, left) = pass(rest, left);
                    self.at = if left == 0 { At::Head } else { At::Body(left) };
                    taken
                }
                At::Chunk(left) => {
                    let (taken, left) = pass(rest, left);
                    self.at = if left == 0 { At::ChunkSize } else { At::Chunk(left) };
                    taken
                }
                At::Head | At::Trailers | At::ChunkSize => {
                    match rest.iter().position(|&byte| byte == b'\n') {
                        None => {
                            self.line.extend(rest);
                            return;
                        }
                        Some(end) => {
                            self.line.extend(&rest[..end]);
                            if !self.line.ends_in_cr || !self.line_ends() {
                                rest[end] = 0;
                                self.at = At::Beyond;
                            }
                            self.line.clear();
                            end + 1
                        }
                    }
                }
            };
            rest = &mut rest[taken..];
        }
    }

    /// False when the head is to be refused.
    fn line_ends(&mut self) -> bool {
        match self.at {
            At::ChunkSize => match self.chunk() {
                Some(next) => self.at = next,
                None => return false,
            },
            At::Trailers if self.line.is_empty() => self.at = At::Head,
            At::Head if self.line.is_empty() => return !self.begun || self.head_ends(),
            At::Head if !self.begun => {
                self.begun = true;
                // The preface of HTTP/2. As a request of HTTP/1.1 hyper refuses it.
                if self.line.text() == Some(b"PRI * HTTP/2.0") {
                    self.at = At::Beyond;
                }
            }
            At::Head => return self.header(),
            At::Trailers | At::Body(_) | At::Chunk(_) | At::Beyond => {}
        }
        true
    }

    /// False when the head is to be refused: hyper passes over any number of spaces and zeros, and this has not kept them.
    fn header(&mut self) -> bool {
        let Some((name, value)) = self.line.field() else { return true };
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        if (is("transfer-encoding") || is("content-length")) && self.line.text().is_none() {
            return false;
        }
        if is("transfer-encoding") {
            let chunked = value.eq_ignore_ascii_case(b"chunked") && self.coding.is_none();
            self.coding = Some(if chunked { Coding::Chunked } else { Coding::Other });
        } else if is("content-length") {
            let whole = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
            let length = std::str::from_utf8(value).ok().filter(|_| whole).and_then(|text| text.parse().ok());
            match length {
                Some(length) if self.length.is_none_or(|other| other == length) => self.length = Some(length),
                // Hyper refuses it.
                _ => self.at = At::Beyond,
            }
        }
        true
    }

    fn head_ends(&mut self) -> bool {
        self.begun = false;
        let (length, coding) = (self.length.take(), self.coding.take());
        self.at = match (length, coding) {
            (Some(_), Some(_)) => return false,
            // `host` refuses it, with a word, and the connection is closed.
            (None, Some(Coding::Other)) => At::Beyond,
            (None, Some(Coding::Chunked)) => At::ChunkSize,
            (None | Some(0), None) => At::Head,
            (Some(length), None) => At::Body(length),
        };
        true
    }

    /// What follows the line of a chunk's size; `None` where not all of that was kept.
    fn chunk(&self) -> Option<At> {
        let digits = self.line.kept.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        if digits == KEPT {
            return None;
        }
        let size = std::str::from_utf8(&self.line.kept[..digits]).ok();
        Some(match size.and_then(|size| u64::from_str_radix(size, 16).ok()) {
            Some(0) => At::Trailers,
            Some(size) => At::Chunk(size.saturating_add(2)),
            // Hyper refuses it.
            None => At::Beyond,
        })
    }
}

/// How many bytes are passed over, and how many are left to be.
fn pass(bytes: &[u8], left: u64) -> (usize, u64) {
    let taken = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
    (taken, left - taken as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What hyper gets when the bytes come in parts of these sizes, again and again.
    fn passed(bytes: &[u8], sizes: &[usize]) -> Vec<u8> {
        let mut scanner = Scanner::default();
        let (mut all, mut rest) = (Vec::new(), bytes.to_vec());
        for &size in sizes.iter().cycle() {
            let mut part: Vec<u8> = rest.drain(..size.min(rest.len())).collect();
            scanner.scan(&mut part);
            all.extend(part);
            if rest.is_empty() {
                break;
            }
        }
        all
    }

    fn is_refused(head: &str) -> bool {
        let seen = passed(head.as_bytes(), &[usize::MAX]);
        let by_byte = passed(head.as_bytes(), &[1]);
        assert_eq!(seen, by_byte, "{head:?}");
        assert!(seen == head.as_bytes() || seen.contains(&0), "{head:?}");
        seen.contains(&0)
    }

    #[test]
    fn a_bare_line_feed_anywhere_in_a_head_is_refused() {
        for good in [
            "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n\n\n\n\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\n\n\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\n\n\n",
        ] {
            assert!(!is_refused(good), "{good:?}");
        }
        for bad in [
            "GET / HTTP/1.1\nHost: x\r\n\r\n",
            "\nGET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\n\n",
            "GET / HTTP/1.1\r\nX: y\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n\nGET / HTTP/1.1\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\nGET /\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\n\r\n",
        ] {
            assert!(is_refused(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_length_beside_a_coding_is_refused_in_either_order() {
        let head = |first: &str, second: &str| format!("POST / HTTP/1.1\r\n{first}\r\n{second}\r\n\r\n");
        let (length, coding) = ("Content-Length: 5", "TRANSFER-encoding:chunked");
        assert!(is_refused(&head(length, coding)) && is_refused(&head(coding, length)));
        assert!(!is_refused(&head(length, length)) && !is_refused(&head(coding, "X: y")));
    }

    /// Hyper takes these for `5` and `chunked`; who looks at what is kept would see nothing, or the end.
    #[test]
    fn what_is_padded_until_it_is_not_seen_is_refused() {
        let head = |lines: &str| format!("POST / HTTP/1.1\r\n{lines}\r\n\r\n");
        let (spaces, zeros) = (" ".repeat(50), "0".repeat(64));
        for bad in [
            head(&format!("Content-Length:{spaces}5")),
            head(&format!("Content-Length:{spaces}5\r\nTransfer-Encoding: chunked")),
            head(&format!("Content-Length: {zeros}5")),
            head(&format!("transfer-encoding:{spaces}chunked")),
            head(&format!("Transfer-Encoding: chunked{spaces}")),
            head("Transfer-Encoding: chunked") + &format!("{zeros}5\r\n"),
            head("Transfer-Encoding: chunked") + &format!("{zeros}\r\n\r\n"),
        ] {
            assert!(is_refused(&bad), "{bad:?}");
        }
        for good in [
            head(&format!("Content-Length:{}5", &spaces[..40])) + "12345",
            head(&format!("X-Transfer-Encoding:{spaces}chunked")),
            // Extensions of a chunk may be long.
            head("Transfer-Encoding: chunked") + &format!("5;x={zeros}\r\n12345\r\n0\r\n\r\n"),
        ] {
            assert!(!is_refused(&good), "{good:?}");
        }
    }

    /// A request that leaves no doubt, as bytes.
    fn request() -> impl Strategy<Value = Vec<u8>> {
        let body = prop::collection::vec(any::<u8>(), 0..40);
        let header = "[A-Za-z-]{1,80}: {0,80}[!-~]{0,80}\r\n";
        (body, prop::collection::vec(header, 0..4), 0..3u8, 1..9usize).prop_map(
            |(body, headers, kind, size)| {
                let mut bytes = b"POST /generate HTTP/1.1\r\nHost: x\r\n".to_vec();
                let lengths = ["content-length", "transfer-encoding"];
                let is_other = |line: &&String| {
                    lengths.iter().all(|name| !line.to_ascii_lowercase().starts_with(&format!("{name}:")))
                };
                bytes.extend(headers.iter().filter(is_other).flat_map(|line| line.bytes()));
                match kind {
                    0 => bytes.extend(b"\r\n"),
                    1 => {
                        bytes.extend(format!("Content-Length: {}\r\n\r\n", body.len()).bytes());
                        bytes.extend(body);
                    }
                    _ => {
                        bytes.extend(b"Transfer-Encoding: chunked\r\n\r\n");
                        for chunk in body.chunks(size) {
                            bytes.extend(format!("{:X}\r\n", chunk.len()).bytes());
                            bytes.extend(chunk);
                            bytes.extend(b"\r\n");
                        }
                        bytes.extend(b"0\r\n\r\n");
                    }
                }
                bytes
            },
        )
    }

    proptest! {
        #[test]
        fn requests_pass_as_they_are_however_they_come(
            requests in prop::collection::vec(request(), 1..4),
            sizes in prop::collection::vec(1..200usize, 1..5),
        ) {
            let bytes = requests.concat();
            prop_assert_eq!(passed(&bytes, &sizes), bytes);
        }

        #[test]
        fn nothing_of_what_comes_is_lost_or_changed_but_one_byte(
            bytes in prop::collection::vec(any::<u8>(), 1..400),
            sizes in prop::collection::vec(1..50usize, 1..4),
        ) {
            let seen = passed(&bytes, &sizes);
            let changed: Vec<_> = seen.iter().zip(&bytes).filter(|(seen, sent)| seen != sent).collect();
            prop_assert!(seen.len() == bytes.len() && changed.len() <= 1);
            prop_assert!(changed.iter().all(|pair| *pair == (&0, &b'\n')));
        }

        /// A line feed that loses its carriage return, in the head of whichever request.
        #[test]
        fn a_bare_line_feed_is_found_behind_any_body(
            before in prop::collection::vec(request(), 0..3),
            line in 0..3usize,
            sizes in prop::collection::vec(1..200usize, 1..4),
        ) {
            let head = ["GET / HTTP/1.1", "Host: x", ""];
            let ends = (0..3).map(|index| if index == line { "\n" } else { "\r\n" });
            let last: String = head.iter().zip(ends).map(|(text, end)| format!("{text}{end}")).collect();
            let bytes = [before.concat(), last.clone().into_bytes()].concat();
            let mut expected = bytes.clone();
            let feed = last.match_indices('\n').nth(line).expect("three lines").0;
            let start = expected.len() - last.len();
            expected[start + feed] = 0;
            prop_assert_eq!(passed(&bytes, &sizes), expected);
        }
    }
}
