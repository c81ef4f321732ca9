//! Pipes in memory in the place of unix sockets, by the same names: what lives in virtual time may not wait for the system, which has
//! another clock. Known to one thread, as everything in virtual time is.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc;

thread_local! {
    static LISTENERS: RefCell<HashMap<PathBuf, mpsc::UnboundedSender<DuplexStream>>> = RefCell::default();
}

/// What is dialled at `name` from now on; who listened there before is forgotten.
pub fn listen(name: PathBuf) -> mpsc::UnboundedReceiver<DuplexStream> {
    let (sender, dialled) = mpsc::unbounded_channel();
    LISTENERS.with_borrow_mut(|listeners| listeners.insert(name, sender));
    dialled
}

/// Whether anybody ever listened there; if not it is a socket of the system.
pub fn listens(name: &Path) -> bool {
    LISTENERS.with_borrow(|listeners| listeners.contains_key(name))
}

pub fn dial(name: &Path) -> io::Result<DuplexStream> {
    LISTENERS.with_borrow(|listeners| {
        let listener = listeners.get(name).ok_or(io::ErrorKind::NotFound)?;
        let (own, far) = duplex(1 << 20);
        listener.send(far).map(|()| own).map_err(|_| io::ErrorKind::ConnectionRefused.into())
    })
}
