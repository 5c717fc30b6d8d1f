//! What the rules of kinds are told by the server's flags.

use std::fmt::{self, Display};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

pub const EVENT_TTL: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone)]
pub struct Settings {
    /// Where services get their addresses from; the first is the cluster's own family.
    pub service_ranges: Vec<AddressRange>,
    pub node_ports: RangeInclusive<u16>,
    /// Objects may wait for others to finish them.
    pub initializers: bool,
    /// How long an Event is kept after its last write.
    pub event_ttl: Duration,
    pub storage_format: StorageFormat,
}

/// How built-in kinds are written to the store. Both are read whatever this says; custom resources are always JSON,
/// as upstream's are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StorageFormat {
    /// What goes out is what is stored: nothing is decoded on the way.
    #[default]
    Json,
    Protobuf,
}

impl Default for Settings {
    fn default() -> Settings {
        let range = "10.96.0.0/16".parse().expect("a well-formed range");
        Settings {
            service_ranges: vec![range],
            node_ports: 30_000..=32_767,
            initializers: false,
            event_ttl: EVENT_TTL,
            storage_format: StorageFormat::default(),
        }
    }
}

/// A CIDR that addresses are given out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    network: IpAddr,
    bits: u8,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a CIDR")]
pub struct BadRange(String);

impl FromStr for AddressRange {
    type Err = BadRange;

    fn from_str(text: &str) -> Result<AddressRange, BadRange> {
        let bad = || BadRange(text.to_string());
        let (address, bits) = text.split_once('/').ok_or_else(bad)?;
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let bits: u8 = bits.parse().map_err(|_| bad())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        if bits > width {
            return Err(bad());
        }
        let range = AddressRange { network: address, bits };
        Ok(AddressRange { network: range.address_of(range.number(address) & range.mask()), bits })
    }
}

impl AddressRange {
    pub fn first(&self) -> IpAddr {
        self.network
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.network.is_ipv4()
            && self.number(address) & self.mask() == self.number(self.network)
    }

    /// How many offsets [`nth`](Self::nth) knows: the network's own address is 0, and of IPv4 the last is the
    /// broadcast. Very large ranges are used from their beginning.
    pub fn size(&self) -> u64 {
        let host_bits = (self.width() - self.bits).min(63);
        let all = 1u64 << host_bits;
        if self.network.is_ipv4() && host_bits > 1 { all - 1 } else { all }
    }

    pub fn nth(&self, offset: u64) -> Option<IpAddr> {
        (offset < self.size()).then(|| self.address_of(self.number(self.network) + u128::from(offset)))
    }

    fn width(&self) -> u8 {
        if self.network.is_ipv4() { 32 } else { 128 }
    }

    fn mask(&self) -> u128 {
        let host_bits = u32::from(self.width() - self.bits);
        u128::MAX.checked_shl(host_bits).unwrap_or(0)
    }

    fn number(&self, address: IpAddr) -> u128 {
        match address {
            IpAddr::V4(address) => u32::from(address).into(),
            IpAddr::V6(address) => address.into(),
        }
    }

    fn address_of(&self, number: u128) -> IpAddr {
        match self.network {
            IpAddr::V4(_) => IpAddr::V4((number as u32).into()),
            IpAddr::V6(_) => IpAddr::V6(number.into()),
        }
    }
}

impl Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_knows_its_addresses() {
        let range: AddressRange = "10.96.3.4/16".parse().expect("a range");
        assert_eq!(range.to_string(), "10.96.0.0/16");
        assert_eq!(range.nth(1).map(|address| address.to_string()).as_deref(), Some("10.96.0.1"));
        assert!(range.contains([10, 96, 255, 1].into()) && !range.contains([10, 97, 0, 1].into()));
        assert!("10.96.0.0".parse::<AddressRange>().is_err());
        assert!("10.96.0.0/40".parse::<AddressRange>().is_err());
        let six: AddressRange = "fd00::/108".parse().expect("a range");
        assert_eq!(six.nth(1).map(|address| address.to_string()).as_deref(), Some("fd00::1"));
    }
}
