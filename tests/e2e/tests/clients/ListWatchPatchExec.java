import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.api.model.ConfigMapBuilder;
import io.fabric8.kubernetes.api.model.ConfigMapList;
import io.fabric8.kubernetes.api.model.ListOptionsBuilder;
import io.fabric8.kubernetes.api.model.NamespaceBuilder;
import io.fabric8.kubernetes.api.model.PodBuilder;
import io.fabric8.kubernetes.api.model.apps.Deployment;
import io.fabric8.kubernetes.api.model.apps.DeploymentBuilder;
import io.fabric8.kubernetes.api.model.autoscaling.v1.ScaleBuilder;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.KubernetesClientException;
import io.fabric8.kubernetes.client.LocalPortForward;
import io.fabric8.kubernetes.client.Watch;
import io.fabric8.kubernetes.client.Watcher;
import io.fabric8.kubernetes.client.WatcherException;
import io.fabric8.kubernetes.client.dsl.ExecWatch;
import io.fabric8.kubernetes.client.dsl.base.PatchContext;
import io.fabric8.kubernetes.client.dsl.base.PatchType;
import io.fabric8.kubernetes.client.informers.ResourceEventHandler;
import io.fabric8.kubernetes.client.informers.SharedIndexInformer;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * The Java client (fabric8) against any Kubernetes: lists in pages, watches, informers, patches of every kind, and
 * exec, copying, logs and port-forward where a pod can run.
 *
 * <pre>KUBECONFIG=... IMAGE=an-image-with-a-shell java -cp 'kubernetes-client and what it needs' ListWatchPatchExec.java</pre>
 *
 * Prints a line for each thing that was seen and exits with an error at the first that was not. Without IMAGE no pod
 * is made.
 */
public class ListWatchPatchExec {
    static final String NAMESPACE = "java-client";
    static final int COUNT = 25;

    static ConfigMap configMap(String name, String value) {
        return new ConfigMapBuilder().withNewMetadata().withName(name).withNamespace(NAMESPACE)
            .addToLabels("app", "java").endMetadata().addToData("value", value).build();
    }

    static void expect(String what, Object seen, Object wanted) {
        if (!Objects.equals(seen, wanted)) {
            throw new AssertionError(what + ": " + seen + " instead of " + wanted);
        }
        System.out.println(what + ": " + seen);
    }

    static void lists(KubernetesClient client) {
        int pages = 0;
        Set<String> revisions = new HashSet<>();
        List<String> names = new ArrayList<>();
        String token = null;
        do {
            ConfigMapList page = client.configMaps().inNamespace(NAMESPACE).withLabel("app", "java")
                .list(new ListOptionsBuilder().withLimit(10L).withContinue(token).build());
            pages += 1;
            token = page.getMetadata().getContinue();
            revisions.add(page.getMetadata().getResourceVersion());
            page.getItems().forEach(item -> names.add(item.getMetadata().getName()));
        } while (token != null && !token.isEmpty());
        expect("pages", pages, 3);
        expect("revisions of all pages", revisions.size(), 1);
        List<String> wanted = new ArrayList<>();
        for (int number = 0; number < COUNT; number++) {
            wanted.add(String.format("m%02d", number));
        }
        expect("objects in all pages", names, wanted);
        expect("selected by field",
            client.configMaps().inNamespace(NAMESPACE).withField("metadata.name", "m07").list().getItems().size(), 1);
    }

    static void writeThree(KubernetesClient client, String name) {
        client.resource(configMap(name, "1")).create();
        client.configMaps().inNamespace(NAMESPACE).withName(name)
            .patch(PatchContext.of(PatchType.JSON_MERGE), "{\"data\": {\"value\": \"2\"}}");
        client.configMaps().inNamespace(NAMESPACE).withName(name).delete();
    }

    static void watches(KubernetesClient client) throws Exception {
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        String start = client.configMaps().inNamespace(NAMESPACE).list().getMetadata().getResourceVersion();
        var options = new ListOptionsBuilder().withResourceVersion(start).withAllowWatchBookmarks(true).build();
        try (Watch watch = client.configMaps().inNamespace(NAMESPACE).watch(options, new Watcher<ConfigMap>() {
            public void eventReceived(Action action, ConfigMap map) {
                if (action != Action.BOOKMARK && map.getMetadata().getName().equals("watched")) {
                    events.add(action + " " + map.getData().get("value"));
                }
            }

            public void onClose(WatcherException cause) {
                events.add("closed: " + cause);
            }
        })) {
            writeThree(client, "watched");
            for (String wanted : List.of("ADDED 1", "MODIFIED 2", "DELETED 2")) {
                expect("event", events.poll(60, TimeUnit.SECONDS), wanted);
            }
        }
    }

    static void informs(KubernetesClient client) throws Exception {
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        var handler = new ResourceEventHandler<ConfigMap>() {
            void saw(String verb, ConfigMap map) {
                if (map.getMetadata().getName().equals("informed")) {
                    events.add(verb + " " + map.getData().get("value"));
                }
            }

            public void onAdd(ConfigMap map) {
                saw("add", map);
            }

            public void onUpdate(ConfigMap old, ConfigMap map) {
                saw("update", map);
            }

            public void onDelete(ConfigMap map, boolean unknown) {
                saw("delete", map);
            }
        };
        try (SharedIndexInformer<ConfigMap> informer = client.configMaps().inNamespace(NAMESPACE).inform(handler)) {
            expect("the cache of an informer", informer.getStore().list().size() >= COUNT, true);
            writeThree(client, "informed");
            for (String wanted : List.of("add 1", "update 2", "delete 2")) {
                expect("an informer saw", events.poll(60, TimeUnit.SECONDS), wanted);
            }
        }
    }

    static void patches(KubernetesClient client) {
        var m01 = client.configMaps().inNamespace(NAMESPACE).withName("m01");
        expect("patched by a merge patch",
            m01.patch(PatchContext.of(PatchType.JSON_MERGE), "{\"data\": {\"value\": \"merged\", \"more\": \"x\"}}").getData(),
            Map.of("value", "merged", "more", "x"));
        expect("patched by a JSON patch",
            m01.patch(PatchContext.of(PatchType.JSON), "[{\"op\": \"remove\", \"path\": \"/data/more\"}]").getData(),
            Map.of("value", "merged"));
        expect("edited", m01.edit(map -> new ConfigMapBuilder(map).editMetadata().addToLabels("edited", "yes")
            .endMetadata().build()).getMetadata().getLabels().get("edited"), "yes");
        Deployment web = new DeploymentBuilder().withNewMetadata().withName("web").withNamespace(NAMESPACE).endMetadata()
            .withNewSpec().withReplicas(0).withNewSelector().addToMatchLabels("app", "web").endSelector()
            .withNewTemplate().withNewMetadata().addToLabels("app", "web").endMetadata()
            .withNewSpec().addNewContainer().withName("web").withImage("one").endContainer().endSpec().endTemplate()
            .endSpec().build();
        client.resource(web).create();
        var deployment = client.apps().deployments().inNamespace(NAMESPACE).withName("web");
        String side = "{\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"side\",\"image\":\"two\"}]}}}}";
        expect("containers merged by name",
            deployment.patch(PatchContext.of(PatchType.STRATEGIC_MERGE), side).getSpec().getTemplate().getSpec()
                .getContainers().stream().map(container -> container.getName()).sorted().toList(),
            List.of("side", "web"));
        var one = new ScaleBuilder().withNewMetadata().withName("web").withNamespace(NAMESPACE).endMetadata()
            .withNewSpec().withReplicas(1).endSpec().build();
        expect("scaled to", deployment.scale(one).getSpec().getReplicas(), 1);
        deployment.delete();
        ConfigMap applied = new ConfigMapBuilder().withNewMetadata().withName("m01").withNamespace(NAMESPACE)
            .endMetadata().addToData("applied", "yes").build();
        expect("applied by the server", client.resource(applied).fieldManager("script").forceConflicts().serverSideApply()
            .getData(), Map.of("value", "merged", "applied", "yes"));
        expect("read by discovery", client.genericKubernetesResources("v1", "ConfigMap").inNamespace(NAMESPACE)
            .withName("m01").get().<String>get("data", "applied"), "yes");
    }

    static void refusals(KubernetesClient client) {
        try {
            client.resource(configMap("m01", "again")).create();
        } catch (KubernetesClientException refused) {
            expect("a second of that name", refused.getCode() + " " + refused.getStatus().getReason(), "409 AlreadyExists");
            return;
        }
        throw new AssertionError("a second of that name was created");
    }

    static void pods(KubernetesClient client, String image) throws Exception {
        String script = "echo started; mkdir /w; echo served > /w/index.html; httpd -p 8080 -h /w; exec sleep 600";
        client.resource(new PodBuilder().withNewMetadata().withName("shell").withNamespace(NAMESPACE).endMetadata()
            .withNewSpec().withTerminationGracePeriodSeconds(0L).addNewContainer().withName("shell").withImage(image)
            .withImagePullPolicy("IfNotPresent").withCommand("sh", "-c", script).endContainer().endSpec().build()).create();
        var pod = client.pods().inNamespace(NAMESPACE).withName("shell");
        pod.waitUntilReady(120, TimeUnit.SECONDS);

        var output = new ByteArrayOutputStream();
        var errors = new ByteArrayOutputStream();
        byte[] typed = "typed\n".getBytes(StandardCharsets.UTF_8);
        try (ExecWatch exec = pod.readingInput(new ByteArrayInputStream(typed)).writingOutput(output)
            .writingError(errors).exec("sh", "-c", "read line; echo got $line; echo complaint >&2; exit 7")) {
            expect("exec: code", exec.exitCode().get(60, TimeUnit.SECONDS), 7);
        }
        expect("exec: output and errors", output.toString() + errors, "got typed\ncomplaint\n");

        Path copied = Files.createTempFile("copied", ".txt");
        Files.writeString(copied, "copied\n");
        expect("a file is copied in", pod.file("/w/copied.txt").upload(copied), true);
        expect("and out", pod.file("/w/copied.txt").copy(copied), true);
        expect("the copy", Files.readString(copied), "copied\n");
        expect("the log", pod.getLog(), "started\n");
        try (LocalPortForward forward = pod.portForward(8080)) {
            var request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + forward.getLocalPort() + "/index.html"));
            var answer = HttpClient.newHttpClient().send(request.build(), HttpResponse.BodyHandlers.ofString());
            expect("through a forwarded port", answer.body(), "served\n");
        }
        pod.delete();
    }

    public static void main(String[] arguments) throws Exception {
        try (KubernetesClient client = new KubernetesClientBuilder().build()) {
            System.out.println("server " + client.getKubernetesVersion().getGitVersion());
            client.resource(new NamespaceBuilder().withNewMetadata().withName(NAMESPACE).endMetadata().build()).create();
            for (int number = 0; number < COUNT; number++) {
                client.resource(configMap(String.format("m%02d", number), "1")).create();
            }
            lists(client);
            watches(client);
            informs(client);
            patches(client);
            refusals(client);
            if (System.getenv("IMAGE") != null) {
                pods(client, System.getenv("IMAGE"));
            }
            client.namespaces().withName(NAMESPACE).delete();
            System.out.println("all seen");
        }
        System.exit(0);
    }
}
