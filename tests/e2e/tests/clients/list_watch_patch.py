"""The Python client against any Kubernetes: lists in pages, watches with bookmarks, patches of every kind.

    KUBECONFIG=... python3 list_watch_patch.py

Prints a line for each thing that was seen and exits with an error at the first that was not.
"""

import threading
import time

import kubernetes
from kubernetes import client, config, watch

NAMESPACE = "python-client"
COUNT = 25


def config_map(name, value):
    return client.V1ConfigMap(
        metadata=client.V1ObjectMeta(name=name, labels={"app": "python"}), data={"value": value}
    )


def expect(what, seen, wanted):
    if seen != wanted:
        raise SystemExit(f"{what}: {seen!r} instead of {wanted!r}")
    print(f"{what}: {seen!r}")


def lists(core):
    pages, revisions, names, token = 0, set(), [], None
    while True:
        page = core.list_namespaced_config_map(
            NAMESPACE, limit=10, _continue=token, label_selector="app=python"
        )
        pages, token = pages + 1, page.metadata._continue
        revisions.add(page.metadata.resource_version)
        names += [item.metadata.name for item in page.items]
        if not token:
            break
    expect("pages", pages, 3)
    expect("revisions of all pages", len(revisions), 1)
    expect("objects in all pages", names, sorted(f"m{number:02}" for number in range(COUNT)))
    chosen = core.list_namespaced_config_map(NAMESPACE, field_selector="metadata.name=m07")
    expect("selected by field", [item.metadata.name for item in chosen.items], ["m07"])


def watches(core):
    start = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version

    def write():
        time.sleep(0.2)
        core.create_namespaced_config_map(NAMESPACE, config_map("watched", "1"))
        core.patch_namespaced_config_map("watched", NAMESPACE, {"data": {"value": "2"}})
        core.delete_namespaced_config_map("watched", NAMESPACE)

    writer = threading.Thread(target=write)
    writer.start()
    seen, bookmark = [], None
    for event in watch.Watch().stream(
        core.list_namespaced_config_map,
        NAMESPACE,
        resource_version=start,
        allow_watch_bookmarks=True,
        timeout_seconds=4,
    ):
        raw = event["raw_object"]
        if event["type"] == "BOOKMARK":
            bookmark = raw["metadata"]["resourceVersion"]
        elif raw["metadata"]["name"] == "watched":
            seen.append((event["type"], raw["data"]["value"]))
    writer.join()
    expect("events", seen, [("ADDED", "1"), ("MODIFIED", "2"), ("DELETED", "2")])
    expect("a bookmark came, newer than the start", int(bookmark or 0) > int(start), True)


def patches(core, apps):
    merged = core.patch_namespaced_config_map("m01", NAMESPACE, {"data": {"value": "merged", "more": "x"}})
    expect("patched", merged.data, {"value": "merged", "more": "x"})
    listed = core.patch_namespaced_config_map(
        "m01", NAMESPACE, [{"op": "remove", "path": "/data/more"}, {"op": "test", "path": "/data/value", "value": "merged"}]
    )
    expect("patched by a JSON patch", listed.data, {"value": "merged"})
    container = client.V1Container(name="web", image="one")
    apps.create_namespaced_deployment(
        NAMESPACE,
        client.V1Deployment(
            metadata=client.V1ObjectMeta(name="web"),
            spec=client.V1DeploymentSpec(
                selector=client.V1LabelSelector(match_labels={"app": "web"}),
                template=client.V1PodTemplateSpec(
                    metadata=client.V1ObjectMeta(labels={"app": "web"}),
                    spec=client.V1PodSpec(containers=[container]),
                ),
            ),
        ),
    )
    change = {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "two"}]}}}}
    changed = apps.patch_namespaced_deployment("web", NAMESPACE, change)
    names = sorted(container.name for container in changed.spec.template.spec.containers)
    expect("containers merged by name", names, ["side", "web"])
    scaled = apps.patch_namespaced_deployment_scale("web", NAMESPACE, {"spec": {"replicas": 3}})
    expect("scaled to", scaled.spec.replicas, 3)


def refusals(core):
    try:
        core.create_namespaced_config_map(NAMESPACE, config_map("m01", "again"))
    except client.exceptions.ApiException as refused:
        expect("a second of that name", (refused.status, refused.reason), (409, "Conflict"))
    else:
        raise SystemExit("a second of that name was created")


def main():
    config.load_kube_config()
    print("client", kubernetes.__version__)
    core, apps = client.CoreV1Api(), client.AppsV1Api()
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE)))
    for number in range(COUNT):
        core.create_namespaced_config_map(NAMESPACE, config_map(f"m{number:02}", "1"))
    lists(core)
    watches(core)
    patches(core, apps)
    refusals(core)
    print("all seen")


if __name__ == "__main__":
    main()
