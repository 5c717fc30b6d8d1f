//! Archives that `ferry image load` is given: an OCI layout or what `docker save` wrote.

use ferry_kubelet::images::oci;

pub fn run(data: &[u8]) {
    let Ok(images) = oci::read_archive(data, Some("fuzz")) else { return };
    for image in images {
        assert!(image.blobs.contains(&image.target));
        for blob in &image.blobs {
            assert_eq!(oci::digest(&blob.data), blob.digest, "a blob under another's name");
        }
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let config = br#"{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}"#;
    let layer = archive(&[("a".into(), b"x".to_vec())]);
    let docker = archive(&[
        ("manifest.json".into(), br#"[{"Config":"c.json","RepoTags":["a:b"],"Layers":["l.tar"]}]"#.to_vec()),
        ("c.json".into(), config.to_vec()),
        ("l.tar".into(), layer.clone()),
    ]);
    let descriptor = |kind: &str, data: &[u8]| {
        let (digest, size) = (oci::digest(data), data.len());
        format!(r#"{{"mediaType":"application/vnd.oci.image.{kind}","digest":"{digest}","size":{size}}}"#)
    };
    let manifest = format!(
        r#"{{"schemaVersion":2,"config":{},"layers":[{}]}}"#,
        descriptor("config.v1+json", config),
        descriptor("layer.v1.tar", &layer)
    );
    let nested = format!(r#"{{"manifests":[{}]}}"#, descriptor("manifest.v1+json", manifest.as_bytes()));
    let index = format!(r#"{{"manifests":[{}]}}"#, descriptor("index.v1+json", nested.as_bytes()));
    let blob = |data: &[u8]| (format!("blobs/{}", oci::digest(data).replacen(':', "/", 1)), data.to_vec());
    let layout = archive(&[
        ("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
        ("index.json".into(), index.into_bytes()),
        blob(nested.as_bytes()),
        blob(manifest.as_bytes()),
        blob(config),
        blob(&layer),
    ]);
    vec![docker, layout]
}

fn archive(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, data) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, data.as_slice()).expect("it is written to memory");
    }
    builder.into_inner().expect("it is written to memory")
}
