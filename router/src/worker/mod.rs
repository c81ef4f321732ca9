//! The worker contract as the scheduler sees it: a group of ranks that execute the same numbered plans.

pub mod group;
pub mod mock;
pub mod source;
mod stream;

pub use group::{Group, PrepareLimits, StartError};
pub use source::{GiveUp, Loss, LossKind, WorkerSource};
pub use stream::Run;

/// Generated from proto/penstock.proto.
#[allow(clippy::all, missing_docs)]
pub mod proto {
    tonic::include_proto!("penstock.v1");

    /// See `ModelDescription.contract`.
    pub const CONTRACT: u32 = match u32::from_str_radix(env!("PENSTOCK_CONTRACT"), 10) {
        Ok(contract) => contract,
        Err(_) => panic!("build.rs writes a number"),
    };

    impl ModelDescription {
        pub fn is_encoder_decoder(&self) -> bool {
            !self.decoder_start_ids.is_empty()
        }

        /// Positions that a sequence may take beside those of its request's input and output.
        pub fn positions_beside(&self) -> u32 {
            match self.is_encoder_decoder() {
                true => self.decoder_start_ids.len() as u32 + self.block_size - 1,
                false => 0,
            }
        }
    }
}
