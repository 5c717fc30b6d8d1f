//! What a node has, and what of it pods may use.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::config::Config;
use crate::resources::amount_of;

/// CPU in thousandths, the rest in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    pub pods: i64,
}

/// Memory that pods may take together: all that is not reserved for the system.
pub fn memory_of_pods(capacity: &Capacity, config: &Config) -> i64 {
    (capacity.memory - reserved(config, "memory")).max(0)
}

fn reserved(config: &Config, resource: &str) -> i64 {
    let of = |map: &BTreeMap<String, String>| map.get(resource).map_or(0, |text| amount_of(resource, text));
    of(&config.kube_reserved) + of(&config.system_reserved)
}

/// Capacity less what is reserved for the system and for eviction.
pub fn allocatable(capacity: &Capacity, config: &Config) -> Capacity {
    let reserved = |resource: &str| reserved(config, resource);
    let held_back = |signal: &str, whole: i64| {
        config.eviction_hard.get(signal).map_or(0, |threshold| threshold_amount(threshold, whole))
    };
    let memory = reserved("memory") + held_back("memory.available", capacity.memory);
    let storage = reserved("ephemeral-storage") + held_back("nodefs.available", capacity.ephemeral_storage);
    Capacity {
        milli_cpu: (capacity.milli_cpu - reserved("cpu")).max(0),
        memory: (capacity.memory - memory).max(0),
        ephemeral_storage: (capacity.ephemeral_storage - storage).max(0),
        pods: capacity.pods,
    }
}

/// `10%` of the whole, or a quantity.
pub fn threshold_amount(threshold: &str, whole: i64) -> i64 {
    match threshold.strip_suffix('%').and_then(|percent| percent.parse::<f64>().ok()) {
        Some(percent) => (whole as f64 * percent / 100.0) as i64,
        None => amount_of("memory", threshold),
    }
}

/// In the words of the API.
pub fn quantities(capacity: &Capacity, is_capacity: bool) -> BTreeMap<String, Quantity> {
    let cpu = if capacity.milli_cpu % 1000 == 0 {
        (capacity.milli_cpu / 1000).to_string()
    } else {
        format!("{}m", capacity.milli_cpu)
    };
    let storage = if is_capacity {
        format!("{}Ki", capacity.ephemeral_storage / 1024)
    } else {
        capacity.ephemeral_storage.to_string()
    };
    BTreeMap::from([
        ("cpu".into(), Quantity(cpu)),
        ("memory".into(), Quantity(format!("{}Ki", capacity.memory / 1024))),
        ("ephemeral-storage".into(), Quantity(storage)),
        ("pods".into(), Quantity(capacity.pods.to_string())),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_and_eviction_limits_come_off() {
        let capacity = Capacity { milli_cpu: 4000, memory: 8 << 30, ephemeral_storage: 100 << 30, pods: 110 };
        let mut config = Config::new("node");
        config.kube_reserved =
            BTreeMap::from([("cpu".into(), "100m".into()), ("memory".into(), "256Mi".into())]);
        config.system_reserved = BTreeMap::from([("cpu".into(), "400m".into())]);
        let left = allocatable(&capacity, &config);
        assert_eq!(left.milli_cpu, 3500);
        assert_eq!(memory_of_pods(&capacity, &config), (8 << 30) - (256 << 20));
        assert_eq!(left.memory, (8 << 30) - (256 << 20) - (100 << 20));
        assert_eq!(left.ephemeral_storage, 90 << 30, "a tenth is held back for eviction");
        let shown = quantities(&left, false);
        assert_eq!(shown["cpu"].0, "3500m");
        assert_eq!(shown["pods"].0, "110");
    }
}
