//! A Service against a quota.

use k8s_openapi::api::core::v1::Service;

use super::{Amounts, number, one};

pub const NAMES: [&str; 4] = ["count/services", "services", "services.nodeports", "services.loadbalancers"];

/// Ports are counted by what the service intends: the numbers are drawn later.
pub fn usage(service: &Service) -> Amounts {
    let spec = service.spec.as_ref();
    let ports = || spec.into_iter().flat_map(|spec| spec.ports.iter().flatten());
    let (node_ports, balancers) = match spec.and_then(|spec| spec.type_.as_deref()) {
        Some("NodePort") => (ports().count(), 0),
        Some("LoadBalancer") => {
            let suppressed = spec.is_some_and(|spec| spec.allocate_load_balancer_node_ports == Some(false));
            let named = || ports().filter(|port| port.node_port.is_some_and(|number| number != 0)).count();
            (if suppressed { named() } else { ports().count() }, 1)
        }
        _ => (0, 0),
    };
    let counts = [one(), one(), number(node_ports), number(balancers)];
    NAMES.into_iter().map(str::to_string).zip(counts).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn services_count_their_node_ports_and_balancers() {
        let check = |spec: Value, expected: (&str, &str)| {
            let service: Service = serde_json::from_value(json!({"spec": spec.clone()})).expect("a service");
            let usage = usage(&service);
            let found =
                (usage["services.nodeports"].to_string(), usage["services.loadbalancers"].to_string());
            assert_eq!((found.0.as_str(), found.1.as_str()), expected, "{spec}");
        };
        let ports = json!([{"port": 1}, {"port": 2, "nodePort": 30000}]);
        check(json!({"type": "ClusterIP", "ports": ports}), ("0", "0"));
        check(json!({"type": "NodePort", "ports": ports}), ("2", "0"));
        check(json!({"type": "LoadBalancer", "ports": ports}), ("2", "1"));
        check(
            json!({"type": "LoadBalancer", "ports": ports, "allocateLoadBalancerNodePorts": false}),
            ("1", "1"),
        );
    }
}
