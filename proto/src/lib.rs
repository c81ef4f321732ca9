//! The contract between router and workers, as `penstock.proto` lays it down: the messages and the client and server
//! that are generated from it (and those of `recording.proto`), the ids in its columns, the columns of `Starts`, and how a block is divided into pages. Both sides of the
//! contract in Rust, the scheduler and the mock worker, read it here; it knows neither.

pub mod ids;
pub mod starts;
pub mod tables;

pub use generated::*;
pub use prost::Message;

#[allow(clippy::all, missing_docs)]
mod generated {
    tonic::include_proto!("penstock.v1");
}

/// See `ModelDescription.contract`.
pub const CONTRACT: u32 = match u32::from_str_radix(env!("PENSTOCK_CONTRACT"), 10) {
    Ok(contract) => contract,
    Err(_) => panic!("build.rs writes a number"),
};

impl Masks {
    /// In `only`: those of the next mask in `words`.
    pub const OF_WORDS: u32 = u32::MAX;
    /// In `only`: no token.
    pub const NONE: u32 = u32::MAX - 1;
}

impl ModelDescription {
    pub fn is_encoder_decoder(&self) -> bool {
        !self.decoder_start_ids.is_empty()
    }

    /// Whether its sequences have a state that cannot be rewound.
    pub fn has_state(&self) -> bool {
        self.state_bytes > 0
    }

    /// Positions that a sequence may take beside those of its request's input and output.
    pub fn positions_beside(&self) -> u32 {
        match self.is_encoder_decoder() {
            true => self.decoder_start_ids.len() as u32 + self.block_size - 1,
            false => 0,
        }
    }
}
