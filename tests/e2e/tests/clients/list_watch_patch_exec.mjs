// The JavaScript client against any Kubernetes: lists in pages, watches with bookmarks, informers, patches of every
// kind, and exec, attach, logs and port-forward where a pod can run.
//
//     npm install @kubernetes/client-node
//     KUBECONFIG=... IMAGE=an-image-with-a-shell node list_watch_patch_exec.mjs
//
// Prints a line for each thing that was seen and exits with an error at the first that was not. Without IMAGE no pod
// is made.

import assert from 'node:assert/strict';
import net from 'node:net';
import stream from 'node:stream';
import * as k8s from '@kubernetes/client-node';

const NAMESPACE = 'javascript-client';
const COUNT = 25;

const config = new k8s.KubeConfig();
config.loadFromDefault();
const core = config.makeApiClient(k8s.CoreV1Api);
const apps = config.makeApiClient(k8s.AppsV1Api);

const configMap = (name, value) => ({ metadata: { name, labels: { app: 'javascript' } }, data: { value } });
const patchedAs = (type) => k8s.setHeaderOptions('Content-Type', type);

function expect(what, seen, wanted) {
    assert.deepEqual(seen, wanted, what);
    console.log(`${what}: ${JSON.stringify(seen)}`);
}

/** Resolves with the first answer of `ask` that is not undefined. */
async function eventually(what, ask, seconds = 120) {
    for (const end = Date.now() + seconds * 1000; Date.now() < end; ) {
        const answer = await ask();
        if (answer !== undefined) return answer;
        await new Promise((resume) => setTimeout(resume, 100));
    }
    throw new Error(`${what}: not within ${seconds} s`);
}

async function lists() {
    let pages = 0;
    let token;
    const revisions = new Set();
    const names = [];
    do {
        const page = await core.listNamespacedConfigMap({
            namespace: NAMESPACE, limit: 10, _continue: token, labelSelector: 'app=javascript',
        });
        pages += 1;
        token = page.metadata._continue;
        revisions.add(page.metadata.resourceVersion);
        names.push(...page.items.map((item) => item.metadata.name));
    } while (token);
    expect('pages', pages, 3);
    expect('revisions of all pages', revisions.size, 1);
    expect('objects in all pages', names, Array.from({ length: COUNT }, (_, n) => `m${String(n).padStart(2, '0')}`));
    const chosen = await core.listNamespacedConfigMap({ namespace: NAMESPACE, fieldSelector: 'metadata.name=m07' });
    expect('selected by field', chosen.items.map((item) => item.metadata.name), ['m07']);
}

async function writeThree(name) {
    await core.createNamespacedConfigMap({ namespace: NAMESPACE, body: configMap(name, '1') });
    await core.patchNamespacedConfigMap(
        { namespace: NAMESPACE, name, body: { data: { value: '2' } } }, patchedAs(k8s.PatchStrategy.MergePatch));
    await core.deleteNamespacedConfigMap({ namespace: NAMESPACE, name });
}

async function watches() {
    const start = (await core.listNamespacedConfigMap({ namespace: NAMESPACE })).metadata.resourceVersion;
    const seen = [];
    let bookmark = '0';
    let ended;
    const end = new Promise((resolve) => (ended = resolve));
    await new k8s.Watch(config).watch(
        `/api/v1/namespaces/${NAMESPACE}/configmaps`,
        { resourceVersion: start, allowWatchBookmarks: true, timeoutSeconds: 4 },
        (type, object) => {
            if (type === 'BOOKMARK') bookmark = object.metadata.resourceVersion;
            else if (object.metadata.name === 'watched') seen.push([type, object.data.value]);
        },
        ended,
    );
    await writeThree('watched');
    await end;
    expect('events', seen, [['ADDED', '1'], ['MODIFIED', '2'], ['DELETED', '2']]);
    expect('a bookmark came, newer than the start', BigInt(bookmark) > BigInt(start), true);
}

async function informs() {
    const path = `/api/v1/namespaces/${NAMESPACE}/configmaps`;
    const informer = k8s.makeInformer(config, path, () => core.listNamespacedConfigMap({ namespace: NAMESPACE }));
    const seen = [];
    for (const verb of ['add', 'update', 'delete']) {
        informer.on(verb, (object) => object.metadata.name === 'informed' && seen.push([verb, object.data.value]));
    }
    await informer.start();
    expect('the cache of an informer', informer.list(NAMESPACE).length >= COUNT, true);
    await writeThree('informed');
    await eventually('the informer', () => (seen.length === 3 ? true : undefined));
    expect('an informer saw', seen, [['add', '1'], ['update', '2'], ['delete', '2']]);
    await informer.stop();
}

async function patches() {
    const name = 'm01';
    const merged = await core.patchNamespacedConfigMap(
        { namespace: NAMESPACE, name, body: { data: { value: 'merged', more: 'x' } } },
        patchedAs(k8s.PatchStrategy.MergePatch));
    expect('patched by a merge patch', merged.data, { value: 'merged', more: 'x' });
    const listed = await core.patchNamespacedConfigMap(
        { namespace: NAMESPACE, name, body: [{ op: 'remove', path: '/data/more' }] },
        patchedAs(k8s.PatchStrategy.JsonPatch));
    expect('patched by a JSON patch', listed.data, { value: 'merged' });
    const template = (containers) => ({ spec: { template: { spec: { containers } } } });
    await apps.createNamespacedDeployment({
        namespace: NAMESPACE,
        body: {
            metadata: { name: 'web' },
            spec: {
                replicas: 0,
                selector: { matchLabels: { app: 'web' } },
                template: { metadata: { labels: { app: 'web' } }, spec: { containers: [{ name: 'web', image: 'one' }] } },
            },
        },
    });
    const changed = await apps.patchNamespacedDeployment(
        { namespace: NAMESPACE, name: 'web', body: template([{ name: 'side', image: 'two' }]) },
        patchedAs(k8s.PatchStrategy.StrategicMergePatch));
    expect('containers merged by name', changed.spec.template.spec.containers.map((c) => c.name).sort(), ['side', 'web']);
    const applied = await core.patchNamespacedConfigMap(
        {
            namespace: NAMESPACE, name, fieldManager: 'script', force: true,
            body: { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name }, data: { applied: 'yes' } },
        },
        patchedAs(k8s.PatchStrategy.ServerSideApply));
    expect('applied by the server', applied.data, { value: 'merged', applied: 'yes' });
    const scaled = await apps.replaceNamespacedDeploymentScale({
        namespace: NAMESPACE, name: 'web', body: { metadata: { name: 'web', namespace: NAMESPACE }, spec: { replicas: 1 } },
    });
    expect('scaled to', scaled.spec.replicas, 1);
    await apps.deleteNamespacedDeployment({ namespace: NAMESPACE, name: 'web' });
    const object = await k8s.KubernetesObjectApi.makeApiClient(config).read({
        apiVersion: 'v1', kind: 'ConfigMap', metadata: { name, namespace: NAMESPACE },
    });
    expect('read by discovery', object.data.applied, 'yes');
}

async function refusals() {
    const refused = await core
        .createNamespacedConfigMap({ namespace: NAMESPACE, body: configMap('m01', 'again') })
        .then(() => { throw new Error('a second of that name was created'); }, (error) => error);
    expect('a second of that name', [refused.code, JSON.parse(refused.body).reason], [409, 'AlreadyExists']);
}

/** What a stream was given, as text. */
class Text extends stream.Writable {
    text = '';
    _write(chunk, _encoding, done) { this.text += chunk; done(); }
}

async function pods(image) {
    await core.createNamespacedPod({
        namespace: NAMESPACE,
        body: {
            metadata: { name: 'shell' },
            spec: {
                terminationGracePeriodSeconds: 0,
                containers: [{
                    name: 'shell', image, imagePullPolicy: 'IfNotPresent', stdin: true,
                    command: ['sh', '-c', 'echo started; mkdir /w; echo served > /w/index.html; httpd -p 8080 -h /w; while read line; do echo got $line; done'],
                }],
            },
        },
    });
    await eventually('the pod runs', async () => {
        const pod = await core.readNamespacedPod({ namespace: NAMESPACE, name: 'shell' });
        return pod.status.containerStatuses?.[0].state.running ? true : undefined;
    });
    const [out, err] = [new Text(), new Text()];
    const command = ['sh', '-c', 'read line; echo got $line; echo complaint >&2; exit 7'];
    const status = await new Promise((resolve, reject) => {
        new k8s.Exec(config).exec(
            NAMESPACE, 'shell', 'shell', command, out, err, stream.Readable.from(['typed\n']), false, resolve,
        ).catch(reject);
    });
    expect('exec: output, errors, reason, code',
        [out.text, err.text, status.reason, status.details.causes[0].message],
        ['got typed\n', 'complaint\n', 'NonZeroExitCode', '7']);

    const attached = new Text();
    // An input that ends closes the socket, and nothing more is read.
    const input = new stream.PassThrough();
    input.write('a line\n');
    const socket = await new k8s.Attach(config).attach(NAMESPACE, 'shell', 'shell', attached, null, input, false);
    await eventually('attach', () => (attached.text.includes('got a line\n') ? true : undefined));
    socket.close();
    console.log('attached: wrote a line and read the answer');

    const log = new Text();
    await new k8s.Log(config).log(NAMESPACE, 'shell', 'shell', log, { follow: true });
    await eventually('log', () => (log.text.includes('got a line\n') ? true : undefined));
    expect('the log begins with', log.text.split('\n')[0], 'started');

    const forward = new k8s.PortForward(config);
    const listener = net.createServer((socket) => forward.portForward(NAMESPACE, 'shell', [8080], socket, null, socket));
    await new Promise((listening) => listener.listen(0, '127.0.0.1', listening));
    const page = await new Promise((resolve, reject) => {
        const text = new Text();
        const caller = net.connect(listener.address().port, '127.0.0.1');
        caller.on('error', reject);
        caller.pipe(text);
        caller.write('GET /index.html HTTP/1.0\r\n\r\n');
        eventually('port-forward', () => (text.text.includes('served') ? text.text : undefined)).then(resolve, reject);
    });
    expect('through a forwarded port', [page.split('\r\n')[0].split(' ')[1], page.trim().endsWith('served')], ['200', true]);
    await core.deleteNamespacedPod({ namespace: NAMESPACE, name: 'shell' });
}

await core.createNamespace({ body: { metadata: { name: NAMESPACE } } });
for (let n = 0; n < COUNT; n++) {
    await core.createNamespacedConfigMap({ namespace: NAMESPACE, body: configMap(`m${String(n).padStart(2, '0')}`, '1') });
}
await lists();
await watches();
await informs();
await patches();
await refusals();
if (process.env.IMAGE) await pods(process.env.IMAGE);
await core.deleteNamespace({ name: NAMESPACE });
console.log('all seen');
process.exit(0);
