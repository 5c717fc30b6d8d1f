//! The page of `ferry ui` in a real browser: signing in, looking, acting, signing out. Nodes are hollow, all else is real.
//!
//! `FERRY_SCREENSHOTS=DIR` writes the pictures of the documentation there.

use std::path::Path;
use std::process::Command;

use ferry_e2e::webdriver::{Browser, Window};
use kube::Client;
use serde_json::{Value, json};

use super::processes::Cluster;
use super::serving_kubelet::ServingKubelet;
use super::{hollow, until};

const DESK: Window = Window { width: 1280, height: 800, is_dark: false };
const PHONE: Window = Window { width: 390, height: 844, is_dark: true };
const ACCESSIBILITY: &str = include_str!("../../src/accessibility.js");

async fn send(client: &Client, method: &str, path: &str, body: &Value) -> Value {
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(if body.is_null() { Vec::new() } else { body.to_string().into_bytes() })
        .expect("a request");
    let text = client.request_text(request).await.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
    serde_json::from_str(&text).expect("JSON")
}

fn deployment(name: &str, replicas: u32) -> Value {
    let container =
        json!({ "name": "web", "image": "nginx", "resources": { "requests": { "cpu": "100m" } } });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } }, "spec": { "containers": [container] } },
        },
    })
}

/// `ferry ui --no-open`
fn link(cluster: &Cluster) -> String {
    let mut command: Command = cluster.ferry();
    let output = command.args(["ui", "--no-open", "--kubeconfig"]).arg(cluster.kubeconfig()).output();
    let output = output.expect("ferry runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

fn go(browser: &Browser, address: &str) {
    browser.run("location.hash = arguments[0]", &[json!(address)]);
}

/// In the light and in the dark.
#[track_caller]
fn accessible(browser: &Browser, page: &str) {
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        let faults = browser.run(ACCESSIBILITY, &[]);
        assert_eq!(faults, json!([]), "{page}, {scheme}: {faults:#}");
    }
    browser.prefer("");
}

#[track_caller]
fn fits_the_phone(browser: &Browser, page: &str) {
    let over = browser.run("return document.documentElement.scrollWidth - innerWidth", &[]);
    assert!(over.as_i64().is_some_and(|over| over <= 0), "{page} is {over} pixels wider than the phone");
}

/// Presses the button of an action, and waits for what it asks.
#[track_caller]
fn choose(browser: &Browser, action: &str) {
    let button = format!(
        "[...document.querySelectorAll('header.page button')].find((one) => one.innerText.startsWith('{action}'))"
    );
    browser.until(&format!("{action} is offered"), &format!("!!{button}"));
    browser.run(&format!("{button}.click()"), &[]);
    browser.until("the request is shown", "document.querySelector('dialog .request')");
}

fn picture(browser: &Browser, name: &str) {
    if let Some(directory) = std::env::var_os("FERRY_SCREENSHOTS") {
        let path = Path::new(&directory).join(name);
        std::fs::write(path, browser.screenshot()).expect("the picture is written");
    }
}

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_the_cluster_and_acts_after_a_confirmation() {
    let Some(cluster) = Cluster::start().await else { return };
    let Some(browser) = Browser::start(DESK) else { return };
    let client = &cluster.client;
    // Nobody renews the leases of the nodes, which must not be given up meanwhile.
    let (_controllers, _scheduler) = (cluster.controller_manager_with_grace("30m"), cluster.scheduler());
    let mut serving = Vec::new();
    for name in ["ada", "grace", "mary"] {
        hollow::node(client, name, 10).await;
        serving.push(ServingKubelet::start(cluster.directory(), client, name).await);
    }
    let kubelets = hollow::kubelets(client.clone());
    send(client, "POST", DEPLOYMENTS, &deployment("web", 3)).await;
    let ports = json!([{ "port": 80 }]);
    let service =
        json!({ "metadata": { "name": "web" }, "spec": { "selector": { "app": "web" }, "ports": ports } });
    send(client, "POST", "/api/v1/namespaces/default/services", &service).await;
    until("three pods are ready", || async {
        let web = send(client, "GET", &format!("{DEPLOYMENTS}/web"), &Value::Null).await;
        (web["status"]["readyReplicas"] == 3).then_some(())
    })
    .await;

    signs_in_by_a_link(&browser, &cluster);
    let big = json!({ "metadata": { "name": "big" }, "spec": { "containers": [
        { "name": "c", "image": "nginx", "resources": { "requests": { "cpu": "64" } } }] } });
    send(client, "POST", "/api/v1/namespaces/default/pods", &big).await;

    browser.until(
        "the nodes are counted",
        "[...document.querySelectorAll('.figure')].some((one) => one.innerText.includes('3/3'))",
    );
    browser.until("the map leads to the pods", "document.querySelectorAll('.topology .edge').length >= 3");
    browser.until("CPU and memory are plotted", "document.querySelectorAll('svg.plot').length === 2");
    browser
        .until("of all nodes", "/0\\.\\d\\d of 3\\.00 cores/.test(document.querySelector('main').innerText)");
    accessible(&browser, "overview");
    if std::env::var_os("FERRY_SCREENSHOTS").is_some() {
        // The page asks every 15 seconds; a few answers make a curve.
        let points =
            "(document.querySelector('svg.plot path.line')?.getAttribute('d') ?? '').split('L').length";
        browser.until("there is something to see", &format!("{points} > 4"));
    }
    picture(&browser, "ui-overview.png");
    a_redraw_keeps_the_focus(&browser, client).await;

    lists_stay_current(&browser, client).await;
    an_object_is_told_in_full(&browser);
    revisions_are_compared(&browser, client).await;
    a_log_is_followed(&browser, client, &serving).await;
    the_trace_is_drawn(&browser);

    go(&browser, "#/pending");
    browser.until(
        "each node's refusal is told",
        "/NodeResourcesFit[^]*Insufficient cpu/.test(document.querySelector('main').innerText)",
    );
    browser.until(
        "of all three",
        "['ada', 'grace', 'mary'].every((name) => document.querySelector('main').innerText.includes(name))",
    );
    accessible(&browser, "pending");
    picture(&browser, "ui-pending.png");

    acts_after_a_confirmation(&browser, client).await;
    finds_by_name(&browser);
    long_lists_are_drawn_in_part(&browser);

    // The host's network may change meanwhile, which is not the page's doing.
    let is_defect = |line: &&String| {
        ["Uncaught", "Content Security Policy", "Trusted"].iter().any(|word| line.contains(word))
    };
    let complaints = browser.console();
    let complaints: Vec<&String> = complaints.iter().filter(is_defect).collect();
    assert!(complaints.is_empty(), "the browser complains: {complaints:#?}");

    browser.click("header.top button.quiet");
    browser.until("signed out", "document.querySelector('#token')");
    assert!(browser.cookies().is_empty(), "{:?}", browser.cookies());
    accessible(&browser, "sign-in");

    // Another link signs in where the page is open.
    let address = link(&cluster);
    go(&browser, &format!("#{}", address.split_once('#').expect("a link").1));
    browser.until("signed in again", "document.querySelector('header.top')");
    kubelets.abort();
}

fn signs_in_by_a_link(browser: &Browser, cluster: &Cluster) {
    browser.load(|| link(cluster), "header.top");
    let address = browser.run("return location.href", &[]);
    assert!(!address.as_str().expect("text").contains("link"), "{address}");
    let cookies = browser.cookies();
    let [cookie] = cookies.as_slice() else { panic!("{cookies:?}") };
    assert_eq!(cookie["name"], "__Host-ferry-session");
    assert_eq!(
        (&cookie["httpOnly"], &cookie["secure"], &cookie["sameSite"]),
        (&json!(true), &json!(true), &json!("Strict"))
    );
    assert_eq!(browser.run("return document.cookie", &[]), "", "no script can read it");
    // The policy is the browser's own to keep.
    let inline = "const script = document.createElement('script');
        try { script.textContent = 'window.inlined = true'; document.body.append(script); } catch {}
        return window.inlined ?? 'refused'";
    assert_eq!(browser.run(inline, &[]), "refused");
    // Not even by itself: no page is framed here.
    let framed = "const frame = document.createElement('iframe'); frame.src = '/ui/';
        const loaded = new Promise((resolve) => frame.addEventListener('load', resolve));
        document.body.append(frame); await loaded;
        const found = frame.contentDocument?.querySelector('script') ? 'framed' : 'refused'; frame.remove(); return found";
    assert_eq!(browser.run_async(framed), "refused");
    // What a script of another page could do: the cookie without the key.
    let forged = "const answer = await fetch('/api/v1/secrets'); return answer.status";
    assert_eq!(browser.run_async(forged), 401);
    // These complaints were wanted.
    browser.console();
}

async fn lists_stay_current(browser: &Browser, client: &Client) {
    go(browser, "#/k/apps/deployments");
    browser.until("the list shows it", "document.querySelector('.table a[href*=\"/web\"]')");
    send(client, "POST", DEPLOYMENTS, &deployment("other", 1)).await;
    browser.until("the list has grown by itself", "document.querySelector('.table a[href*=\"/other\"]')");
    accessible(browser, "list");
    // The arrow keys lead from row to row.
    browser.run("document.querySelector('.table .body').focus()", &[]);
    browser.press(&["\u{e015}"]);
    browser.until("a row has the focus", "document.activeElement.matches('.table .row a')");

    let schema =
        json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    let version = json!({ "name": "v1", "served": true, "storage": true, "schema": schema });
    let names = json!({ "plural": "ferries", "singular": "ferry", "kind": "Ferry" });
    let spec =
        json!({ "group": "example.com", "scope": "Namespaced", "names": names, "versions": [version] });
    let definition = json!({ "metadata": { "name": "ferries.example.com" }, "spec": spec });
    send(client, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
    let ferries = "/apis/example.com/v1/namespaces/default/ferries";
    let pioneer = json!({ "apiVersion": "example.com/v1", "kind": "Ferry", "metadata": { "name": "pioneer" }, "spec": { "seats": 40 } });
    until("the custom kind is served", || async {
        let request = http::Request::post(ferries).header("content-type", "application/json");
        let request = request.body(pioneer.to_string().into_bytes()).expect("a request");
        client.request_text(request).await.ok()
    })
    .await;
    go(browser, "#/k/example.com/ferries");
    browser.until("custom kinds are listed", "document.querySelector('.table a[href*=\"/pioneer\"]')");
}

fn an_object_is_told_in_full(browser: &Browser) {
    go(browser, "#/k/apps/deployments");
    browser.click(".table a[href*=\"/web\"]");
    browser.until(
        "its conditions are there",
        "/Available/.test(document.querySelector('#tab-panel')?.innerText)",
    );
    browser
        .until("and its events", "/ScalingReplicaSet/.test(document.querySelector('#tab-panel').innerText)");
    accessible(browser, "object");
    browser.click("#tab-yaml");
    browser.until("its YAML is there", "/replicas: 3/.test(document.querySelector('pre.yaml')?.innerText)");
    accessible(browser, "YAML");
    browser.click("#tab-events");
    browser.until(
        "its events are there",
        "/ScalingReplicaSet/.test(document.querySelector('#tab-panel').innerText)",
    );
    browser.click("#tab-history");
    // A write that changes many fields is told by its first ones; how many writes bring the pods is the controllers' pace.
    browser.until("its writes are there", "document.querySelectorAll('.life .head').length > 1 && /availableReplicas/.test(document.querySelector('.life').innerText)");
    accessible(browser, "history");
    // What is in no namespace has a history too.
    go(browser, "#/o/core/nodes/-/ada/history");
    browser.until(
        "a node's writes are there",
        "/daemonEndpoints/.test(document.querySelector('.life')?.innerText)",
    );
}

/// The changed lines of two revisions, with their values, from the store.
async fn revisions_are_compared(browser: &Browser, client: &Client) {
    go(browser, "#/o/core/configmaps/default/colours/history");
    let map = json!({ "metadata": { "name": "colours" }, "data": { "sky": "grey", "sea": "green" } });
    send(client, "POST", "/api/v1/namespaces/default/configmaps", &map).await;
    let map = json!({ "metadata": { "name": "colours" }, "data": { "sky": "blue", "sea": "green" } });
    send(client, "PUT", "/api/v1/namespaces/default/configmaps/colours", &map).await;
    browser.until("both writes are there", "document.querySelectorAll('.life .compare').length === 2");
    assert!(
        browser.run("return document.querySelector('.life').innerText.includes('blue')", &[]) == false,
        "the trace has no value of it"
    );
    browser.click(".life .compare summary");
    browser.until("what was there", "/sky: grey/.test(document.querySelector('.compare del')?.innerText)");
    browser.until("what is there", "/sky: blue/.test(document.querySelector('.compare ins')?.innerText)");
    let equal = "return [...document.querySelectorAll('.compare :is(ins, del)')].some((one) => one.innerText.includes('sea'))";
    assert_eq!(browser.run(equal, &[]), false, "an equal line is no difference");
    accessible(browser, "a comparison");

    // The trace of it is drawn anew when there is more.
    browser.click("#tab-trace");
    let steps =
        "Number(/([\\d,]+) spans/.exec(document.querySelector('.story')?.innerText)?.[1].replace(',', ''))";
    let before = browser.until("its trace is drawn", steps).as_u64().expect("a number");
    let map = json!({ "metadata": { "name": "colours" }, "data": { "sky": "black" } });
    send(client, "PUT", "/api/v1/namespaces/default/configmaps/colours", &map).await;
    browser.until("the trace goes on", &format!("{steps} > {before}"));
}

async fn a_log_is_followed(browser: &Browser, client: &Client, serving: &[ServingKubelet]) {
    let pods =
        send(client, "GET", "/api/v1/namespaces/default/pods?labelSelector=app%3Dweb", &Value::Null).await;
    let pod = &pods["items"][0];
    let name = pod["metadata"]["name"].as_str().expect("a name");
    let node =
        ["ada", "grace", "mary"].iter().position(|node| pod["spec"]["nodeName"] == *node).expect("its node");
    go(browser, &format!("#/o/core/pods/default/{name}/logs"));
    browser
        .until("the log is there", "/listening on :80/.test(document.querySelector('pre.log')?.innerText)");
    serving[node].write("GET /timetable 200").await;
    browser.until("it goes on", "/GET .timetable 200/.test(document.querySelector('pre.log').innerText)");
    serving[node].write("GET /harbour 404").await;
    browser.type_into("#tab-panel input[type=search]", "harbour");
    browser.until(
        "it is filtered",
        "/^GET .harbour 404\\s*$/.test(document.querySelector('pre.log').innerText)",
    );
    accessible(browser, "log");
}

/// The overview is drawn anew with each event of a pod; whoever is at one of its links stays there.
async fn a_redraw_keeps_the_focus(browser: &Browser, client: &Client) {
    browser.run("document.querySelector('.figure[href=\"#/k/core/services\"]').focus()", &[]);
    let ports = json!([{ "port": 81 }]);
    let service = json!({ "metadata": { "name": "another" }, "spec": { "selector": { "app": "web" }, "ports": ports } });
    send(client, "POST", "/api/v1/namespaces/default/services", &service).await;
    browser.until(
        "one Service more is counted",
        "document.querySelector('.figure[href=\"#/k/core/services\"] .value').innerText === '3'",
    );
    browser.until(
        "the focus is where it was",
        "document.activeElement?.getAttribute('href') === '#/k/core/services'",
    );
    send(client, "DELETE", "/api/v1/namespaces/default/services/another", &Value::Null).await;
    browser.until(
        "it is gone again",
        "document.querySelector('.figure[href=\"#/k/core/services\"] .value').innerText === '2'",
    );
}

fn the_trace_is_drawn(browser: &Browser) {
    go(browser, "#/o/apps/deployments/default/web");
    browser.click("#tab-trace");
    browser.until(
        "the critical path is told",
        "/critical path/.test(document.querySelector('.story')?.innerText)",
    );
    browser.until("bars are drawn", "(() => { const canvas = document.querySelector('.waterfall canvas'); const pen = canvas.getContext('2d'); \
        const pixels = pen.getImageData(0, 0, canvas.width, canvas.height).data; return pixels.some((value) => value > 0); })()");
    browser.run("document.querySelector('.waterfall').focus()", &[]);
    browser.press(&["\u{e015}"]);
    browser.until("a step is described", "document.querySelector('.details h2')");
    accessible(browser, "trace");
    browser.click("#as-table");
    browser.until("the same as a table", "document.querySelectorAll('.trace .table .row').length > 3");
    accessible(browser, "trace as a table");
    browser.click("#as-table");
    // The critical path leads to its steps; a reconcile names the write that woke it.
    browser.run(
        "[...document.querySelectorAll('.story button.link')].find((one) => /replicaset|deployment/.test(one.innerText)).click()",
        &[],
    );
    browser.until(
        "a step names its cause",
        "/Caused by|Triggered/.test(document.querySelector('.details').innerText)",
    );
    picture(browser, "ui-trace.png");
    go(browser, "#/trace?last=true");
    browser.until("the last command", "/span/.test(document.querySelector('.story')?.innerText)");
}

async fn acts_after_a_confirmation(browser: &Browser, client: &Client) {
    go(browser, "#/o/apps/deployments/default/other");
    browser.click("header.page button.danger");
    let shown = browser.until("the request is shown", "document.querySelector('dialog .request')?.innerText");
    let shown = shown.as_str().expect("text");
    assert!(shown.starts_with("DELETE /apis/apps/v1/namespaces/default/deployments/other"), "{shown}");
    assert!(
        shown.contains("\"propagationPolicy\": \"Background\"") && shown.contains("preconditions"),
        "{shown}"
    );
    accessible(browser, "confirmation");
    picture(browser, "ui-delete.png");
    send(client, "GET", &format!("{DEPLOYMENTS}/other"), &Value::Null).await;
    confirm(browser);
    until("it is deleted", || async {
        let request = http::Request::get(format!("{DEPLOYMENTS}/other")).body(Vec::new()).expect("a request");
        client.request_text(request).await.err()
    })
    .await;

    go(browser, "#/o/apps/deployments/default/web");
    choose(browser, "Scale");
    browser.run("const input = document.querySelector('dialog #replicas'); input.value = '5'; input.dispatchEvent(new Event('input'))", &[]);
    browser.until(
        "the request follows",
        "/\"replicas\": 5/.test(document.querySelector('dialog .request').innerText)",
    );
    confirm(browser);
    until("it has five replicas", || async {
        let web = send(client, "GET", &format!("{DEPLOYMENTS}/web"), &Value::Null).await;
        (web["spec"]["replicas"] == 5).then_some(())
    })
    .await;

    choose(browser, "Restart");
    confirm(browser);
    until("its pods are replaced", || async {
        let web = send(client, "GET", &format!("{DEPLOYMENTS}/web"), &Value::Null).await;
        let annotations = &web["spec"]["template"]["metadata"]["annotations"];
        annotations["kubectl.kubernetes.io/restartedAt"].is_string().then_some(())
    })
    .await;

    go(browser, "#/o/core/nodes/-/mary");
    choose(browser, "Cordon");
    confirm(browser);
    until("it is cordoned", || async {
        let node = send(client, "GET", "/api/v1/nodes/mary", &Value::Null).await;
        (node["spec"]["unschedulable"] == true).then_some(())
    })
    .await;
}

/// Sends what is shown; again, if the host's network has changed under it.
#[track_caller]
fn confirm(browser: &Browser) {
    for _ in 0..5 {
        browser.click("dialog #confirm");
        let ended = "!document.querySelector('dialog') || document.querySelector('dialog .problem:not([hidden])')?.innerText";
        let said = browser.until("an answer", ended);
        if said == true {
            return;
        }
        assert!(said.as_str().is_some_and(|said| said.contains("fetch")), "{said}");
    }
    panic!("the request is never answered");
}

fn finds_by_name(browser: &Browser) {
    browser.run("document.querySelector('main').focus()", &[]);
    browser.press(&["/"]);
    browser.type_into("#search-box", "pioneer");
    browser.until("it is found", "/pioneer/.test(document.querySelector('#search-results')?.innerText)");
    accessible(browser, "search");
    browser.press(&["\u{e007}"]);
    browser.until("and opened", "location.hash === '#/o/example.com/ferries/default/pioneer'");
}

/// Work is counted, not measured: what is drawn does not grow with what there is.
fn long_lists_are_drawn_in_part(browser: &Browser) {
    let rows = browser.run_async(
        "const { Table } = await import('/ui/table.js');
         const table = new Table({ label: 'Many', columns: [{ title: 'Name', cell: (row) => row }], key: (row) => row });
         table.element.classList.add('tall');
         document.querySelector('main').append(table.element);
         table.show(Array.from({ length: 10000 }, (_, at) => `pod-${at}`));
         table.drawNow();
         const top = table.space.children.length;
         table.body.scrollTop = 5000 * 36;
         table.drawNow();
         const middle = table.space.children.length, first = table.space.firstChild.innerText;
         table.element.remove();
         return { top, middle, first, count: table.body.getAttribute('aria-rowcount') };",
    );
    assert_eq!(rows["count"], "10001", "{rows}");
    assert!(rows["top"].as_u64().is_some_and(|count| (1..100).contains(&count)), "{rows}");
    assert!(rows["middle"].as_u64().is_some_and(|count| (1..100).contains(&count)), "{rows}");
    assert!(rows["first"].as_str().is_some_and(|name| name.starts_with("pod-") && name != "pod-0"), "{rows}");
    let lines = browser.run_async(
        "const { Waterfall } = await import('/ui/waterfall.js');
         const waterfall = new Waterfall(() => {});
         const frame = document.createElement('div');
         frame.className = 'picture';
         frame.style.setProperty('height', '600px');
         frame.append(waterfall.element);
         document.querySelector('main').append(frame);
         const steps = Array.from({ length: 100000 }, (_, at) => ({ chapter: 'Controllers', indent: 0, label: `step ${at}`, facts: '',
           start: at * 1e6, duration: 1e6, end: (at + 1) * 1e6, times: 1, intervals: [[at * 1e6, (at + 1) * 1e6]], critical: 0,
           span: String(at), causes: [[at, at * 1e6]], writes: [[at + 1, (at + 1) * 1e6]] }));
         waterfall.show({ steps, start: 0, end: 1e11, spans: steps.length, critical: 0, waited: 0, idleReconciles: 0, folds: [] });
         waterfall.drawNow();
         const top = waterfall.drawn;
         waterfall.element.scrollTop = 50000 * 22;
         waterfall.drawNow();
         const middle = waterfall.drawn;
         frame.remove();
         return { top, middle };",
    );
    for place in ["top", "middle"] {
        assert!(lines[place].as_u64().is_some_and(|count| (1..60).contains(&count)), "{lines}");
    }
}

/// Somebody with a token and few rights, on a phone, in the dark.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_offers_only_what_one_may_do() {
    let Some(cluster) = Cluster::start().await else { return };
    let Some(browser) = Browser::start(PHONE) else { return };
    let client = &cluster.client;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    send(client, "POST", accounts, &json!({ "metadata": { "name": "reader" } })).await;
    let rules =
        json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"] }]);
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    send(
        client,
        "POST",
        &format!("{rbac}/roles"),
        &json!({ "metadata": { "name": "reader" }, "rules": rules }),
    )
    .await;
    let binding = json!({
        "metadata": { "name": "reader" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader" },
        "subjects": [{ "kind": "ServiceAccount", "name": "reader", "namespace": "default" }],
    });
    send(client, "POST", &format!("{rbac}/rolebindings"), &binding).await;
    let map = json!({ "metadata": { "name": "timetable" }, "data": { "first": "06:40" } });
    send(client, "POST", "/api/v1/namespaces/default/configmaps", &map).await;
    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
    let token = send(client, "POST", &format!("{accounts}/reader/token"), &request).await;

    let page = link(&cluster);
    let page = page.split_once('#').expect("a link").0;
    browser.load(|| page.to_owned(), "#token");
    accessible(&browser, "sign-in");
    browser.type_into("#token", "guessed");
    browser.click("button.primary");
    browser.until(
        "a wrong token is refused",
        "/does not accept/.test(document.querySelector('.problem').innerText)",
    );
    browser.run("document.querySelector('#token').value = ''", &[]);
    browser.type_into("#token", token["status"]["token"].as_str().expect("a token"));
    browser.click("button.primary");
    browser.until("signed in", "document.querySelector('nav a[href=\"#/k/core/configmaps\"]')");
    let offered = browser
        .run("return [...document.querySelectorAll('nav a')].map((one) => one.getAttribute('href'))", &[]);
    for hidden in ["#/trace", "#/k/core/secrets", "#/k/core/nodes", "#/k/apps/deployments"] {
        assert!(!offered.as_array().expect("links").contains(&json!(hidden)), "{hidden}: {offered}");
    }
    browser.click("button.menu");
    browser.click("nav a[href=\"#/k/core/configmaps\"]");
    browser.click(".table a[href*=\"/timetable\"]");
    browser.until("the object is shown", "/06:40/.test(document.querySelector('#tab-panel')?.innerText)");
    assert_eq!(
        browser.run("return document.querySelectorAll('header.page button').length", &[]),
        0,
        "nothing may be done to it"
    );
    assert_eq!(browser.run("return document.querySelector('#tab-trace')", &[]), Value::Null);
    accessible(&browser, "object on a phone");
    fits_the_phone(&browser, "an object");
    for (address, shown) in [
        ("#/", "/Pods that are not ready/.test(document.querySelector('main').innerText)"),
        ("#/k/core/configmaps", "document.querySelector('.table a[href*=\"/timetable\"]')"),
        ("#/o/core/configmaps/default/timetable/yaml", "document.querySelector('pre.yaml')"),
        ("#/pending", "document.querySelector('main .problem')"),
        ("#/trace", "/not allowed/.test(document.querySelector('main .problem')?.innerText)"),
    ] {
        go(&browser, address);
        browser.until(address, shown);
        fits_the_phone(&browser, address);
        accessible(&browser, address);
    }
}
