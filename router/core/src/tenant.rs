//! Between whom the server is fair: the scheduler's queue and places, and the threads of `blocking`.

use std::net::IpAddr;

/// On whose behalf a sequence runs, and what comes before it is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tenant {
    /// Who is not told apart.
    #[default]
    Anonymous,
    /// The index of the API key among the server's; never the key.
    Key(u32),
    /// Where requests come from that name no user.
    Address(IpAddr),
    /// A digest of the name that a client at this address gave its user: a client can make up as many as it likes.
    User(IpAddr, u64),
}

impl Tenant {
    /// What cannot be made up. Fairness is between origins first, then between the users of one address.
    pub(crate) fn origin(self) -> Tenant {
        match self {
            Tenant::User(address, _) => Tenant::Address(address),
            other => other,
        }
    }

    /// The origin that this tenant may have to share.
    pub(crate) fn shared_origin(self) -> Option<Tenant> {
        matches!(self, Tenant::Address(_) | Tenant::User(..)).then(|| self.origin())
    }
}
