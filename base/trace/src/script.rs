//! Histories written as scripts, for tests of whatever reads records.

use std::borrow::Cow;

use crate::{Context, Record, Value};

/// A scripted history, a step a line: `name [^parent] [@object] [>wrote] [<cause] [!error] [key=value]…`.
pub fn history(script: &str) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    for (index, line) in script.lines().map(str::trim).filter(|line| !line.is_empty()).enumerate() {
        let mut words = line.split_whitespace();
        let name = words.next().expect("a name").to_owned();
        let context = Context::generate();
        let mut record = Record {
            name: Cow::Owned(name),
            trace: context.trace,
            span: context.span,
            parent: None,
            start: 1_000_000_000 + index as u64 * 1_000_000,
            duration: 1_000_000,
            sequence: index as u64,
            object: None,
            causes: Vec::new(),
            committed: None,
            error: None,
            attributes: Vec::new(),
            source: None,
            is_relayed: false,
        };
        for word in words {
            match word.split_at(1) {
                ("^", parent) => {
                    let parent =
                        records.iter().rev().find(|record| record.name == parent).expect("parent first");
                    (record.trace, record.parent) = (parent.trace, Some(parent.span));
                }
                ("@", object) => record.object = Some(object.into()),
                (">", revision) => record.committed = Some(revision.parse().expect("a number")),
                ("<", revision) => record.causes.push(revision.parse().expect("a number")),
                ("!", error) => record.error = Some(error.into()),
                _ => {
                    let (key, value) = word.split_once('=').expect("key=value");
                    let value = value.parse::<i64>().map_or_else(|_| Value::from(value), Value::from);
                    record.attributes.push((Cow::Owned(key.to_owned()), value));
                }
            }
        }
        records.push(record);
    }
    records
}

/// `kubectl run`, from the command to the name in DNS.
pub const COMMAND: &str = "
    kubectl.command command=kubectl-run
    kubectl.request ^kubectl.command method=POST path=/apis/apps/v1/namespaces/default/deployments code=201
    apiserver.request ^kubectl.request method=POST path=/apis/apps/v1/namespaces/default/deployments user=alice
    filter.authentication ^apiserver.request user=alice
    auth.authenticator ^filter.authentication name=X509 verdict=authenticated
    filter.authorization ^apiserver.request
    admission.mutate ^apiserver.request plugin=LimitRanger
    store.commit ^apiserver.request @deployments.apps/default/nginx >10
    store.write ^store.commit >10 bytes=812
    reconcile <10 @deployments.apps/default/nginx controller=deployment-controller waitMicros=100
    apiserver.request ^reconcile method=POST path=/apis/apps/v1/namespaces/default/replicasets user=system:x
    filter.authorization ^apiserver.request
    store.commit ^apiserver.request @replicasets.apps/default/nginx-1 >11
    reconcile <11 @deployments.apps/default/nginx controller=deployment
    scheduler.schedule <11 @pods/default/a node=n1 feasible=1
    kubelet.sync <11 @pods/default/a
    kubelet.sandbox ^kubelet.sync @pods/default/a
    kubelet.container ^kubelet.sync @pods/default/a container=nginx
    kubelet.create ^kubelet.container
    reconcile <11 @services/default/nginx controller=endpointslice
    apiserver.request ^reconcile method=POST path=/apis/discovery.k8s.io/v1/namespaces/default/endpointslices
    store.commit ^apiserver.request @endpointslices.discovery.k8s.io/default/nginx-x >12
    proxy.sync <12 services=1
    dns.update <12 @services/default/nginx
";
