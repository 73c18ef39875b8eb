PRAGMA user_version = 5;
BEGIN TRANSACTION;
CREATE TABLE causes (
        key TEXT NOT NULL,
        position INTEGER NOT NULL,
        cause TEXT NOT NULL,
        score REAL NOT NULL,
        PRIMARY KEY (key, position)
    ) WITHOUT ROWID;
INSERT INTO "causes" VALUES('run1-130',0,'retention_cliff',0.93);
INSERT INTO "causes" VALUES('run1-130',1,'client',0.02);
INSERT INTO "causes" VALUES('run1-131',0,'retention_cliff',0.93);
INSERT INTO "causes" VALUES('run1-131',1,'client',0.02);
INSERT INTO "causes" VALUES('run1-132',0,'retention_cliff',0.93);
INSERT INTO "causes" VALUES('run1-132',1,'client',0.02);
INSERT INTO "causes" VALUES('run1-133',0,'retention_cliff',0.93);
INSERT INTO "causes" VALUES('run1-133',1,'client',0.02);
INSERT INTO "causes" VALUES('run1-134',0,'retention_cliff',0.93);
INSERT INTO "causes" VALUES('run1-134',1,'client',0.02);
INSERT INTO "causes" VALUES('run1-135',0,'client',0.02);
INSERT INTO "causes" VALUES('run1-136',0,'retention_cliff',0.93);
INSERT INTO "causes" VALUES('run1-136',1,'client',0.02);
CREATE TABLE changes (
        run TEXT NOT NULL,
        series TEXT NOT NULL,
        raised_k INTEGER NOT NULL,
        onset_k INTEGER NOT NULL,
        first_k INTEGER NOT NULL,
        last_k INTEGER NOT NULL,
        before REAL,
        after REAL,
        state TEXT NOT NULL,
        confidence REAL NOT NULL,
        kind TEXT NOT NULL,
        gone_k INTEGER,
        period_seconds REAL,
        burst_seconds REAL,
        PRIMARY KEY (run, series, raised_k)
    ) WITHOUT ROWID;
INSERT INTO "changes" VALUES('run1','consume.0@h|end_to_end_latency_seconds{quantile="0.99"}',130,123,122,125,0.0041,0.061,'confirmed',0.99,'step',NULL,NULL,NULL);
CREATE TABLE checkpoints (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) WITHOUT ROWID;
INSERT INTO "checkpoints" VALUES('digest.mail','1789913600000000000');
INSERT INTO "checkpoints" VALUES('digest.mail.tried','{"due_wall_ns": 1790000580000000000, "so_far": "a has it"}');
INSERT INTO "checkpoints" VALUES('digest.other','1790000000000000000');
INSERT INTO "checkpoints" VALUES('notice.run1-given-up-1790000500','{"key": "run1-given-up-1790000500", "daemons": [], "since_wall_ns": 1790000500000000000, "until_wall_ns": null, "why": "consume.0 died 6 times in a minute (exit 1)", "host": "h", "logs": "/runs/logs"}');
INSERT INTO "checkpoints" VALUES('notice.run1-probe@h-1790000000','{"key": "run1-probe@h-1790000000", "daemons": ["probe@h"], "since_wall_ns": 1790000000000000000, "until_wall_ns": 1790000400000000000, "why": "", "host": "h", "logs": "/runs/logs"}');
INSERT INTO "checkpoints" VALUES('stream','13');
CREATE TABLE evidence (
        key TEXT NOT NULL,
        cause TEXT NOT NULL,
        position INTEGER NOT NULL,
        text TEXT NOT NULL,
        numbers TEXT NOT NULL,
        PRIMARY KEY (key, cause, position)
    ) WITHOUT ROWID;
INSERT INTO "evidence" VALUES('run1-130','retention_cliff',0,'First deletion 1 s before the step.','{"seconds": 1}');
INSERT INTO "evidence" VALUES('run1-130','retention_cliff',1,'Latency rises at each of 57 deletions.','{"deletions": 57}');
INSERT INTO "evidence" VALUES('run1-131','retention_cliff',0,'First deletion 1 s before the step.','{"seconds": 1}');
INSERT INTO "evidence" VALUES('run1-131','retention_cliff',1,'Latency rises at each of 57 deletions.','{"deletions": 57}');
INSERT INTO "evidence" VALUES('run1-132','retention_cliff',0,'First deletion 1 s before the step.','{"seconds": 1}');
INSERT INTO "evidence" VALUES('run1-132','retention_cliff',1,'Latency rises at each of 57 deletions.','{"deletions": 57}');
INSERT INTO "evidence" VALUES('run1-133','retention_cliff',0,'First deletion 1 s before the step.','{"seconds": 1}');
INSERT INTO "evidence" VALUES('run1-133','retention_cliff',1,'Latency rises at each of 57 deletions.','{"deletions": 57}');
INSERT INTO "evidence" VALUES('run1-134','retention_cliff',0,'First deletion 1 s before the step.','{"seconds": 1}');
INSERT INTO "evidence" VALUES('run1-134','retention_cliff',1,'Latency rises at each of 57 deletions.','{"deletions": 57}');
INSERT INTO "evidence" VALUES('run1-136','retention_cliff',0,'First deletion 1 s before the step.','{"seconds": 1}');
INSERT INTO "evidence" VALUES('run1-136','retention_cliff',1,'Latency rises at each of 57 deletions.','{"deletions": 57}');
CREATE TABLE finding_changes (
        key TEXT NOT NULL,
        position INTEGER NOT NULL,
        series TEXT NOT NULL,
        PRIMARY KEY (key, position)
    ) WITHOUT ROWID;
INSERT INTO "finding_changes" VALUES('run1-130',0,'produce.0@h|publish_latency_seconds');
INSERT INTO "finding_changes" VALUES('run1-131',0,'produce.0@h|publish_latency_seconds');
INSERT INTO "finding_changes" VALUES('run1-132',0,'produce.0@h|publish_latency_seconds');
INSERT INTO "finding_changes" VALUES('run1-133',0,'produce.0@h|publish_latency_seconds');
INSERT INTO "finding_changes" VALUES('run1-134',0,'produce.0@h|publish_latency_seconds');
INSERT INTO "finding_changes" VALUES('run1-135',0,'produce.0@h|publish_latency_seconds');
INSERT INTO "finding_changes" VALUES('run1-136',0,'produce.0@h|publish_latency_seconds');
CREATE TABLE findings (
        key TEXT PRIMARY KEY,
        run TEXT NOT NULL,
        raised_k INTEGER NOT NULL,
        onset_k INTEGER NOT NULL,
        first_k INTEGER NOT NULL,
        last_k INTEGER NOT NULL,
        series TEXT NOT NULL,
        kind TEXT NOT NULL,
        before REAL,
        after REAL,
        state TEXT NOT NULL,
        confidence REAL NOT NULL,
        is_about_cluster INTEGER NOT NULL,
        gone_k INTEGER,
        saved_wall_ns INTEGER NOT NULL,
        is_settled INTEGER NOT NULL
    ) WITHOUT ROWID;
INSERT INTO "findings" VALUES('run1-130','run1',130,123,122,125,'consume.0@h|end_to_end_latency_seconds{quantile="0.99"}','step',0.0041,0.061,'gone',0.99,1,200,1790000000000000000,1);
INSERT INTO "findings" VALUES('run1-131','run1',130,123,122,125,'consume.0@h|end_to_end_latency_seconds{quantile="0.99"}','step',0.0041,0.061,'confirmed',0.99,1,NULL,1790000000000000000,0);
INSERT INTO "findings" VALUES('run1-132','run1',130,123,122,125,'consume.0@h|end_to_end_latency_seconds{quantile="0.99"}','step',0.0041,0.061,'confirmed',0.99,1,NULL,1790000000000000000,0);
INSERT INTO "findings" VALUES('run1-133','run1',130,123,122,125,'consume.0@h|end_to_end_latency_seconds{quantile="0.99"}','step',0.0041,0.061,'confirmed',0.99,1,NULL,1790000000000000000,1);
INSERT INTO "findings" VALUES('run1-134','run1',130,123,122,125,'consume.0@h|end_to_end_latency_seconds{quantile="0.99"}','step',0.0041,0.061,'confirmed',0.99,1,NULL,1790000000000000000,1);
INSERT INTO "findings" VALUES('run1-135','run1',130,123,122,125,'consume.0@h|end_to_end_latency_seconds{quantile="0.99"}','step',0.0041,0.061,'confirmed',0.99,1,NULL,1790000000000000000,1);
INSERT INTO "findings" VALUES('run1-136','run1',130,123,122,125,'consume.0@h|end_to_end_latency_seconds{quantile="0.99"}','step',0.0041,0.061,'confirmed',0.99,1,NULL,1790000000000000000,1);
CREATE TABLE members (
        run TEXT NOT NULL,
        series TEXT NOT NULL,
        raised_k INTEGER NOT NULL,
        key TEXT NOT NULL,
        PRIMARY KEY (run, series, raised_k)
    ) WITHOUT ROWID;
INSERT INTO "members" VALUES('run1','consume.0@h|end_to_end_latency_seconds{quantile="0.99"}',130,'run1-130');
CREATE TABLE outbox (
        key TEXT NOT NULL,
        sink TEXT NOT NULL,
        kind TEXT NOT NULL,
        turn INTEGER NOT NULL,
        state TEXT NOT NULL,
        created_wall_ns INTEGER NOT NULL,
        next_at_wall_ns INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        done_wall_ns INTEGER,
        detail TEXT NOT NULL,
        so_far TEXT NOT NULL,
        cause TEXT NOT NULL,
        PRIMARY KEY (key, sink, kind, turn)
    ) WITHOUT ROWID;
INSERT INTO "outbox" VALUES('run1-130','mail','confirmed',1,'sent',1790000000000000000,1790000001000000000,1,1790000001000000000,'250 ok','','retention_cliff');
INSERT INTO "outbox" VALUES('run1-130','mail','gone',1,'pending',1790000000000000000,1790000000000000000,0,NULL,'','','');
INSERT INTO "outbox" VALUES('run1-131','mail','confirmed',1,'pending',1790000000000000000,1790000005000000000,1,NULL,'b: 450 later','a has it','retention_cliff');
INSERT INTO "outbox" VALUES('run1-132','mail','confirmed',1,'pending',1790000000000000000,1790000005000000000,1,NULL,'','','retention_cliff');
INSERT INTO "outbox" VALUES('run1-133','mail','confirmed',1,'never',1790000000000000000,1790000001000000000,1,1790000001000000000,'550 no such user','','');
INSERT INTO "outbox" VALUES('run1-134','mail','confirmed',1,'pending',1790000000000000000,1790000000000000000,0,NULL,'','','');
INSERT INTO "outbox" VALUES('run1-135','mail','confirmed',1,'sent',1790000000000000000,1790000001000000000,1,1790000001000000000,'250 ok','','retention_cliff');
INSERT INTO "outbox" VALUES('run1-135','mail','corrected',1,'pending',1790000000000000000,1790000000000000000,0,NULL,'','','');
INSERT INTO "outbox" VALUES('run1-136','mail','confirmed',1,'sent',1790000000000000000,1790000001000000000,1,1790000001000000000,'250 ok','','retention_cliff');
INSERT INTO "outbox" VALUES('run1-136','mail','confirmed',2,'pending',1790000000000000000,1790000000000000000,0,NULL,'','','');
INSERT INTO "outbox" VALUES('run1-136','mail','gone',1,'sent',1790000000000000000,1790000001000000000,1,1790000001000000000,'250 ok','','retention_cliff');
INSERT INTO "outbox" VALUES('run1-given-up-1790000500','mail','confirmed',1,'pending',1790000500000000000,1790000500000000000,0,NULL,'','','');
INSERT INTO "outbox" VALUES('run1-probe@h-1790000000','mail','confirmed',1,'sent',1790000000000000000,1790000001000000000,1,1790000001000000000,'250 ok','','');
INSERT INTO "outbox" VALUES('run1-probe@h-1790000000','mail','gone',1,'pending',1790000400000000000,1790000400000000000,0,NULL,'','','');
COMMIT;
