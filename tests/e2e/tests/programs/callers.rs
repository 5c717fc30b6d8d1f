//! The flags that those pass who start upstream's programs: kwok, vcluster, kubeadm's static pods and its kube-proxy. All are
//! known, and their values are understood.

use crate::links::Links;

const KWOK: &[(&str, &str)] = &[
    (
        "etcd",
        "--name=node0 --initial-advertise-peer-urls=http://0.0.0.0:2380 --listen-peer-urls=http://0.0.0.0:2380 \
         --advertise-client-urls=http://0.0.0.0:2379 --listen-client-urls=http://0.0.0.0:2379 \
         --initial-cluster=node0=http://0.0.0.0:2380 --auto-compaction-retention=1 \
         --quota-backend-bytes=8589934592 --data-dir=/d",
    ),
    (
        "kube-apiserver",
        "--etcd-prefix=/registry --allow-privileged=true --admission-control= --runtime-config=api/legacy=false \
         --feature-gates=AllAlpha=false --max-requests-inflight=0 --max-mutating-requests-inflight=0 \
         --enable-priority-and-fairness=false --etcd-servers=http://127.0.0.1:2379 --authorization-mode=Node,RBAC \
         --tls-cert-file=/c --tls-private-key-file=/c --client-ca-file=/c --service-account-key-file=/c \
         --service-account-signing-key-file=/c \
         --service-account-issuer=https://kubernetes.default.svc.cluster.local --bind-address=127.0.0.1 \
         --secure-port=6443 --audit-policy-file=/a --audit-log-path=/l --tracing-config-file=/t --v=4 \
         --endpoint-reconciler-type=none",
    ),
    (
        "kube-controller-manager",
        "--feature-gates=AllAlpha=false --node-monitor-period=25s --node-monitor-grace-period=3m0s --kubeconfig=/k \
         --authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics --bind-address=127.0.0.1 \
         --secure-port=10257 --root-ca-file=/c --service-account-private-key-file=/c --kube-api-qps=5000 \
         --kube-api-burst=10000 --v=4",
    ),
    (
        "kube-scheduler",
        "--feature-gates=AllAlpha=false --config=/f --authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics \
         --bind-address=127.0.0.1 --secure-port=10259 --v=4",
    ),
];

const VCLUSTER: &[(&str, &str)] = &[
    (
        "kube-apiserver",
        "--advertise-address=127.0.0.1 --service-cluster-ip-range=10.96.0.0/16 --bind-address=127.0.0.1 \
         --allow-privileged=true --authorization-mode=RBAC --client-ca-file=/c --enable-bootstrap-token-auth=true \
         --etcd-servers=https://127.0.0.1:2379 --etcd-cafile=/c --etcd-certfile=/c --etcd-keyfile=/c \
         --proxy-client-cert-file=/c --proxy-client-key-file=/c --requestheader-allowed-names=front-proxy-client \
         --requestheader-client-ca-file=/c --requestheader-extra-headers-prefix=X-Remote-Extra- \
         --requestheader-group-headers=X-Remote-Group --requestheader-username-headers=X-Remote-User \
         --secure-port=6443 --service-account-issuer=https://kubernetes.default.svc.cluster.local \
         --service-account-key-file=/c --service-account-signing-key-file=/c --tls-cert-file=/c \
         --tls-private-key-file=/c --watch-cache=false --endpoint-reconciler-type=none",
    ),
    (
        "kube-controller-manager",
        "--service-cluster-ip-range=10.96.0.0/16 --authentication-kubeconfig=/k --authorization-kubeconfig=/k \
         --bind-address=127.0.0.1 --client-ca-file=/c --cluster-name=kubernetes --cluster-signing-cert-file=/c \
         --cluster-signing-key-file=/c --horizontal-pod-autoscaler-sync-period=60s --kubeconfig=/k \
         --node-monitor-grace-period=180s --node-monitor-period=30s --pvclaimbinder-sync-period=60s \
         --requestheader-client-ca-file=/c --root-ca-file=/c --service-account-private-key-file=/c \
         --use-service-account-credentials=true --leader-elect=false \
         --controllers=*,-nodeipam,-nodelifecycle,-persistentvolume-binder,-attachdetach,-persistentvolume-expander,-cloud-node-lifecycle,-ttl",
    ),
    (
        "kube-scheduler",
        "--authentication-kubeconfig=/k --authorization-kubeconfig=/k --bind-address=127.0.0.1 --kubeconfig=/k \
         --leader-elect=true",
    ),
];

const KUBEADM: &[(&str, &str)] = &[
    (
        "etcd",
        "--name=a --listen-client-urls=https://127.0.0.1:2379,https://10.0.0.1:2379 \
         --advertise-client-urls=https://10.0.0.1:2379 --listen-peer-urls=https://10.0.0.1:2380 \
         --initial-advertise-peer-urls=https://10.0.0.1:2380 --data-dir=/d --cert-file=/c --key-file=/c \
         --trusted-ca-file=/c --client-cert-auth=true --peer-cert-file=/c --peer-key-file=/c \
         --peer-trusted-ca-file=/c --peer-client-cert-auth=true --snapshot-count=10000 \
         --listen-metrics-urls=http://127.0.0.1:2381 --feature-gates=InitialCorruptCheck=true \
         --watch-progress-notify-interval=5s --initial-cluster=a=https://10.0.0.1:2380",
    ),
    (
        "kube-apiserver",
        "--advertise-address=10.0.0.1 --enable-admission-plugins=NodeRestriction \
         --service-cluster-ip-range=10.96.0.0/12 --service-account-key-file=/c --service-account-signing-key-file=/c \
         --service-account-issuer=https://kubernetes.default.svc.cluster.local --client-ca-file=/c --tls-cert-file=/c \
         --tls-private-key-file=/c --kubelet-client-certificate=/c --kubelet-client-key=/c \
         --enable-bootstrap-token-auth=true --secure-port=6443 --allow-privileged=true \
         --kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname \
         --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
         --requestheader-extra-headers-prefix=X-Remote-Extra- --requestheader-client-ca-file=/c \
         --requestheader-allowed-names=front-proxy-client --proxy-client-cert-file=/c --proxy-client-key-file=/c \
         --etcd-servers=https://127.0.0.1:2379 --etcd-cafile=/c --etcd-certfile=/c --etcd-keyfile=/c \
         --authorization-mode=Node,RBAC",
    ),
    (
        "kube-controller-manager",
        "--bind-address=127.0.0.1 --leader-elect=true --kubeconfig=/k --authentication-kubeconfig=/k \
         --authorization-kubeconfig=/k --client-ca-file=/c --requestheader-client-ca-file=/c --root-ca-file=/c \
         --service-account-private-key-file=/c --cluster-signing-cert-file=/c --cluster-signing-key-file=/c \
         --use-service-account-credentials=true --controllers=*,bootstrapsigner,tokencleaner \
         --allocate-node-cidrs=true --cluster-cidr=10.244.0.0/16 --service-cluster-ip-range=10.96.0.0/12 \
         --cluster-name=kubernetes --node-cidr-mask-size=24",
    ),
    (
        "kube-scheduler",
        "--bind-address=127.0.0.1 --leader-elect=true --kubeconfig=/k --authentication-kubeconfig=/k \
         --authorization-kubeconfig=/k",
    ),
    (
        "kubelet",
        "--bootstrap-kubeconfig=/b --kubeconfig=/k --config=/f \
         --container-runtime-endpoint=unix:///run/containerd/containerd.sock \
         --register-with-taints=node-role.kubernetes.io/control-plane:NoSchedule --hostname-override=a \
         --node-ip=10.0.0.1 --node-labels=a=b,c=d --v=2",
    ),
    ("kube-proxy", "--config=/f --hostname-override=a --v=2"),
];

#[test]
fn the_flags_of_those_who_start_upstreams_programs_are_taken() {
    let Some(links) = Links::make() else { return };
    for (program, flags) in KWOK.iter().chain(VCLUSTER).chain(KUBEADM) {
        // The first flag that is not known or not understood ends the program.
        let words: Vec<&str> = flags.split_whitespace().chain(["--the-end"]).collect();
        let output = links.output(program, &words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("'--the-end'"), "{program}: {said}");
    }
}

#[test]
fn unsupported_flags_of_upstreams_programs_are_errors() {
    let Some(links) = Links::make() else { return };
    let refused = |program: &str, flag: &str, word: &str| {
        let output = links.output(program, &[flag]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(word), "{program} {flag}: {said}");
    };
    refused("kube-apiserver", "--service-cluster-ip-range=10.96.0.0/16,fd00::/108", "dual-stack");
    refused("kubelet", "--cloud-provider=external", "cloud-provider");
    refused("kubelet", "--bootstrap-kubeconfig=/nowhere", "ferry agent");
    refused("kubelet", "--max-pods=many", "max-pods");
    refused("kube-proxy", "--config=/nowhere", "/nowhere");
    refused("kube-proxy", "--proxy-mode=ipvs", "nftables");
    refused("kube-controller-manager", "--cloud-provider=aws", "cloud-provider");
}
