//! Images that are resumed, and that are not.

use super::*;

#[test]
fn impossible_images_are_refused() {
    let (mut pair, ..) = busy();
    let Rest(image, app) = lose(&mut pair.a, 10).pop().expect("a connection");
    let at = positions(&app);
    let buffers = Buffers { rx: ROOM, tx: ROOM };
    let mut refused = |image: ConnImage, at: Positions, why| {
        let result = pair.a.ep.resume(pair.now, &image, &at, buffers);
        assert_eq!(result.map(drop), Err(why), "{image:?} {at:?}");
    };
    let bad = ResumeError::BadImage;
    refused(
        ConnImage {
            local_port: 0,
            ..image
        },
        at,
        bad,
    );
    refused(
        ConnImage {
            peer_port: 0,
            ..image
        },
        at,
        bad,
    );
    refused(ConnImage { nonce: 0, ..image }, at, bad);
    refused(
        ConnImage {
            peer_nonce: 0,
            ..image
        },
        at,
        bad,
    );
    refused(
        ConnImage {
            peer_nonce: image.nonce,
            ..image
        },
        at,
        bad,
    );
    refused(
        ConnImage {
            epoch: u32::MAX,
            ..image
        },
        at,
        bad,
    );
    refused(
        ConnImage {
            payload: 63,
            ..image
        },
        at,
        bad,
    );
    let peer = NodeAddr::BROADCAST;
    refused(ConnImage { peer, ..image }, at, bad);
    let peer = MAC_A.into();
    let peer_port = image.local_port;
    refused(
        ConnImage {
            peer,
            peer_port,
            ..image
        },
        at,
        bad,
    );
    let peer = "10.0.0.1@2805".parse().unwrap();
    refused(ConnImage { peer, ..image }, at, bad);
    let mut rails = image.rails;
    rails[3] = MacAddr([1; 6]);
    refused(ConnImage { rails, ..image }, at, bad);
    let acked = at.written + 1;
    refused(image, Positions { acked, ..at }, bad);
    let written = at.acked + u64::from(ROOM) + 1;
    refused(image, Positions { written, ..at }, bad);
    let consumed = at.delivered + 1;
    refused(image, Positions { consumed, ..at }, bad);
    let delivered = u64::MAX;
    refused(image, Positions { delivered, ..at }, bad);
    let small = |rx| Buffers { rx, tx: ROOM };
    let result = pair.a.ep.resume(pair.now, &image, &at, small(63));
    assert_eq!(result.map(drop), Err(bad));
    pair.a.ep.resume(pair.now, &image, &at, small(64)).unwrap();
    // The same again, and the nonce of another connection.
    let mut refused = |image: ConnImage| {
        let result = pair.a.ep.resume(pair.now, &image, &at, buffers);
        assert_eq!(result.map(drop), Err(ResumeError::InUse));
    };
    refused(image);
    refused(ConnImage {
        local_port: 6000,
        ..image
    });
    refused(ConnImage { nonce: 77, ..image });
}

#[test]
fn an_ended_connection_does_not_keep_its_nonce() {
    let (mut pair, a, _) = Pair::connected();
    let image = pair.a.ep.image(a).expect("can be resumed");
    pair.a.ep.abort(pair.now, a, ResetReason::Aborted);
    pair.run(Duration::from_millis(5));
    let next = pair.connect(5001, 1000);
    assert_eq!(next.slot, a.slot);
    let buffers = Buffers { rx: ROOM, tx: ROOM };
    let result = pair
        .a
        .ep
        .resume(pair.now, &image, &Positions::default(), buffers);
    assert!(result.is_ok(), "{result:?}");
}

#[test]
fn images_at_the_limits_are_resumed() {
    let limits: [fn(&mut ConnImage, &mut Positions); 6] = [
        |image, _| image.peer_port = image.local_port,
        |image, _| image.peer = MAC_A.into(),
        |image, _| image.epoch = u32::MAX - 3,
        |image, _| image.payload = 64,
        |_, at| at.written = at.acked + u64::from(ROOM),
        |_, at| (at.consumed, at.delivered) = ((1 << 63) - 1, (1 << 63) - 1),
    ];
    for (case, limit) in limits.into_iter().enumerate() {
        let (mut pair, ..) = busy();
        let Rest(mut image, app) = lose(&mut pair.a, 10).pop().expect("a connection");
        let mut at = positions(&app);
        limit(&mut image, &mut at);
        let buffers = Buffers { rx: ROOM, tx: ROOM };
        let result = pair.a.ep.resume(pair.now, &image, &at, buffers);
        assert!(result.is_ok(), "case {case}: {result:?}");
    }
    let (mut pair, ..) = busy();
    let Rest(image, app) = lose(&mut pair.a, 10).pop().expect("a connection");
    let buffers = Buffers { rx: ROOM, tx: ROOM };
    let mut refused = |image: ConnImage, at: Positions| {
        let result = pair.a.ep.resume(pair.now, &image, &at, buffers);
        assert_eq!(result.map(drop), Err(ResumeError::BadImage));
    };
    let at = positions(&app);
    let epoch = u32::MAX - 2;
    refused(ConnImage { epoch, ..image }, at);
    let (consumed, delivered) = (1 << 63, 1 << 63);
    refused(
        image,
        Positions {
            consumed,
            delivered,
            ..at
        },
    );
}
