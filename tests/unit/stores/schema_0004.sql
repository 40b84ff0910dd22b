BEGIN TRANSACTION;
CREATE TABLE mktune_alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT mktune_alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "mktune_alembic_version" VALUES('0004');
CREATE TABLE mktune_devices (
	id INTEGER NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	name TEXT NOT NULL, 
	arch TEXT NOT NULL, 
	sms INTEGER NOT NULL, 
	smem_per_block INTEGER NOT NULL, 
	l2_bytes BIGINT NOT NULL, 
	bandwidth FLOAT NOT NULL, 
	uuid TEXT NOT NULL, 
	driver TEXT NOT NULL, 
	cuda TEXT NOT NULL, 
	CONSTRAINT pk_mktune_devices PRIMARY KEY (id), 
	CONSTRAINT uq_mktune_devices_key UNIQUE ("key")
);
INSERT INTO "mktune_devices" VALUES(1,'21bd226706ba8edb509c0a347119111166e91637ce4defcc20bd141676717cf7','NVIDIA H200','sm_90a',132,232448,62914560,4800000000000.0,'GPU-1','580.95','13.0');
CREATE TABLE mktune_measurements (
	trial_id INTEGER NOT NULL, 
	span_us FLOAT, 
	low_us FLOAT, 
	high_us FLOAT, 
	samples_us TEXT NOT NULL, 
	policy TEXT NOT NULL, 
	device_state TEXT NOT NULL, 
	simulated BOOLEAN NOT NULL, 
	CONSTRAINT pk_mktune_measurements PRIMARY KEY (trial_id), 
	CONSTRAINT fk_mktune_measurements_trial_id FOREIGN KEY(trial_id) REFERENCES mktune_trials (id)
);
INSERT INTO "mktune_measurements" VALUES(1,10.0,9.9,10.1,'[10.0,10.01,10.02,10.03,10.04]','{"backend": "cuda", "cold": true, "inputs": "random", "layers": 8, "shared_kv": false}','{"sm_mhz_before": 1980.0}',0);
INSERT INTO "mktune_measurements" VALUES(2,11.0,10.9,11.1,'[11.0,11.01,11.02,11.03,11.04]','{"backend": "cuda", "cold": true, "inputs": "random", "layers": 8, "shared_kv": false}','{"sm_mhz_before": 1980.0}',0);
CREATE TABLE mktune_plans (
	id INTEGER NOT NULL, 
	plan_id VARCHAR(64) NOT NULL, 
	workload TEXT NOT NULL, 
	contract INTEGER NOT NULL, 
	scale_format TEXT NOT NULL, 
	ops TEXT NOT NULL, 
	requests INTEGER NOT NULL, 
	tokens_per_request INTEGER NOT NULL, 
	kv INTEGER NOT NULL, 
	gpu TEXT NOT NULL, 
	sms INTEGER NOT NULL, 
	compute_capability TEXT NOT NULL, 
	simulated BOOLEAN NOT NULL, 
	span_us FLOAT NOT NULL, 
	study TEXT NOT NULL, 
	created TEXT NOT NULL, 
	replaced TEXT, 
	document TEXT NOT NULL, 
	CONSTRAINT pk_mktune_plans PRIMARY KEY (id)
);
INSERT INTO "mktune_plans" VALUES(1,'217e6dd8b98ee4431283b0a915fabbea017da42da44a90d4267d63b6c1f49659','glm52_attention_prefix',1,'fp32','A0,B0',2,8,8192,'NVIDIA H200',132,'9.0',0,11.0,'a study','2025-01-01T00:00:02.000+00:00','2025-01-01T00:00:03.000+00:00','{"attribution":{"pdl":{"high_us":1.6,"loss_us":1.5,"low_us":1.4,"note":"","span_us":11.5},"tiles":{"high_us":0.3,"loss_us":0.2,"low_us":-0.1,"note":"with waits of B0","span_us":10.2}},"baseline":"branches+pdl","builtins":{"branches+pdl":11.0,"serial":12.5},"extra":{},"fingerprint":{"compiler":"nvrtc 13.0.88","compute_capability":"9.0","cuda":"13.0","driver":"580.95","gpu":"NVIDIA H200","kernels":"0000000000000000000000000000000000000000000000000000000000000000","mktune":"0.1.0","sms":132},"kept_baseline":false,"measurement":{"device_state":{"sm_mhz_before":1980.0},"high_us":11.1,"low_us":10.9,"policy":{"backend":"cuda","cold":true,"inputs":"random","layers":8,"shared_kv":false},"samples_us":[11.0,11.01,11.02,11.03,11.04],"span_us":11.0},"noise_floor":0.004,"plan":{"contract":1,"edges":{"A0->B0p":"programmatic","B0p->B0f":"full"},"executor":"cuda_graph","kernels":{"A0":{"chain":"full","gdc":"entry","l2_prefetch_bytes":0,"priority":0,"stream":0,"trigger":"exit"},"B0f":{"chain":"full","gdc":"entry","l2_prefetch_bytes":0,"priority":0,"stream":0,"trigger":"exit"},"B0p":{"chain":"full","gdc":"entry","l2_prefetch_bytes":0,"priority":0,"stream":0,"trigger":"exit"}},"kv_range":[1,8192],"m_range":[16,16],"ops":{"A0":{"config":{"threads":192},"impl":"mktune"},"B0":{"config":{"block_m":16,"block_n":64,"finalizer":"kernel","split_k":4,"stages":3,"warps":4},"impl":"wgmma"}},"order":["A0","B0p","B0f"],"scale_format":"fp32","schema":1,"shape":{"kv":8192,"requests":2,"tokens_per_request":8},"workload":"glm52_attention_prefix"},"plan_id":"217e6dd8b98ee4431283b0a915fabbea017da42da44a90d4267d63b6c1f49659","ratio":0.8,"ratio_high":0.81,"ratio_low":0.79,"validated":"300 replays, 3 delays"}');
INSERT INTO "mktune_plans" VALUES(2,'5c80427e7109e752ca8d2abbb086dc4b1d8192e6367a4ed7e703d7e28b36716d','glm52_attention_prefix',1,'fp32','A0,B0',2,8,8192,'NVIDIA H200',132,'9.0',0,10.0,'a study','2025-01-01T00:00:02.000+00:00',NULL,'{"attribution":{"pdl":{"high_us":1.6,"loss_us":1.5,"low_us":1.4,"note":"","span_us":11.5},"tiles":{"high_us":0.3,"loss_us":0.2,"low_us":-0.1,"note":"with waits of B0","span_us":10.2}},"baseline":"branches+pdl","builtins":{"branches+pdl":11.0,"serial":12.5},"extra":{},"fingerprint":{"compiler":"nvrtc 13.0.88","compute_capability":"9.0","cuda":"13.0","driver":"580.95","gpu":"NVIDIA H200","kernels":"0000000000000000000000000000000000000000000000000000000000000000","mktune":"0.1.0","sms":132},"kept_baseline":false,"measurement":{"device_state":{"sm_mhz_before":1980.0},"high_us":10.1,"low_us":9.9,"policy":{"backend":"cuda","cold":true,"inputs":"random","layers":8,"shared_kv":false},"samples_us":[10.0,10.01,10.02,10.03,10.04],"span_us":10.0},"noise_floor":0.004,"plan":{"contract":1,"edges":{"A0->B0p":"programmatic","B0p->B0f":"full"},"executor":"cuda_graph","kernels":{"A0":{"chain":"full","gdc":"entry","l2_prefetch_bytes":0,"priority":0,"stream":0,"trigger":"exit"},"B0f":{"chain":"full","gdc":"entry","l2_prefetch_bytes":0,"priority":0,"stream":0,"trigger":"exit"},"B0p":{"chain":"full","gdc":"entry","l2_prefetch_bytes":0,"priority":0,"stream":0,"trigger":"exit"}},"kv_range":[1,8192],"m_range":[16,16],"ops":{"A0":{"config":{"threads":192},"impl":"mktune"},"B0":{"config":{"block_m":16,"block_n":64,"finalizer":"kernel","split_k":4,"stages":2,"warps":4},"impl":"wgmma"}},"order":["A0","B0p","B0f"],"scale_format":"fp32","schema":1,"shape":{"kv":8192,"requests":2,"tokens_per_request":8},"workload":"glm52_attention_prefix"},"plan_id":"5c80427e7109e752ca8d2abbb086dc4b1d8192e6367a4ed7e703d7e28b36716d","ratio":0.8,"ratio_high":0.81,"ratio_low":0.79,"validated":"300 replays, 3 delays"}');
CREATE TABLE mktune_studies (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	workload TEXT NOT NULL, 
	contract INTEGER NOT NULL, 
	ops TEXT NOT NULL, 
	requests INTEGER NOT NULL, 
	tokens_per_request INTEGER NOT NULL, 
	kv INTEGER NOT NULL, 
	device_id INTEGER NOT NULL, 
	backend TEXT NOT NULL, 
	build TEXT NOT NULL, 
	sampler TEXT NOT NULL, 
	seed BIGINT NOT NULL, 
	created TEXT NOT NULL, 
	invalid INTEGER DEFAULT 0 NOT NULL, 
	duplicate INTEGER DEFAULT 0 NOT NULL, max_trials INTEGER DEFAULT 0 NOT NULL, scale_format TEXT DEFAULT 'fp32' NOT NULL, 
	CONSTRAINT pk_mktune_studies PRIMARY KEY (id), 
	CONSTRAINT fk_mktune_studies_device_id FOREIGN KEY(device_id) REFERENCES mktune_devices (id), 
	CONSTRAINT uq_mktune_studies_name UNIQUE (name)
);
INSERT INTO "mktune_studies" VALUES(1,'a study','glm52_attention_prefix',1,'A0,B0',2,8,8192,1,'cuda','','tpe',7,'2025-01-01T00:00:00.000+00:00',3,1,20,'fp32');
CREATE TABLE mktune_trials (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	plan_id VARCHAR(64) NOT NULL, 
	"plan" TEXT NOT NULL, 
	source TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	started TEXT NOT NULL, 
	ended TEXT, 
	status TEXT, 
	reason TEXT DEFAULT '' NOT NULL, 
	seconds TEXT DEFAULT '[{},{}]' NOT NULL, reserved VARCHAR(64), lease FLOAT, attempt INTEGER DEFAULT 1 NOT NULL, gpu TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_mktune_trials PRIMARY KEY (id), 
	CONSTRAINT fk_mktune_trials_study_id FOREIGN KEY(study_id) REFERENCES mktune_studies (id), 
	CONSTRAINT uq_mktune_trials_study_id_number UNIQUE (study_id, number)
);
INSERT INTO "mktune_trials" VALUES(1,1,0,'5c80427e7109e752ca8d2abbb086dc4b1d8192e6367a4ed7e703d7e28b36716d','{"contract":1,"edges":{"A0->B0p":"programmatic","B0p->B0f":"full"},"executor":"cuda_graph","kernels":{"A0":{"chain":"full","gdc":"entry","l2_prefetch_bytes":0,"priority":0,"stream":0,"trigger":"exit"},"B0f":{"chain":"full","gdc":"entry","l2_prefetch_bytes":0,"priority":0,"stream":0,"trigger":"exit"},"B0p":{"chain":"full","gdc":"entry","l2_prefetch_bytes":0,"priority":0,"stream":0,"trigger":"exit"}},"kv_range":[1,8192],"m_range":[16,16],"ops":{"A0":{"config":{"threads":192},"impl":"mktune"},"B0":{"config":{"block_m":16,"block_n":64,"finalizer":"kernel","split_k":4,"stages":2,"warps":4},"impl":"wgmma"}},"order":["A0","B0p","B0f"],"scale_format":"fp32","schema":1,"shape":{"kv":8192,"requests":2,"tokens_per_request":8},"workload":"glm52_attention_prefix"}','tpe','["host", 1, "2"]','2025-01-01T00:00:00.000+00:00','2025-01-01T00:00:01.000+00:00','ok','','[{"ask": 0.01}, {"measure": 0.5}]','123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0',NULL,1,'GPU-1');
INSERT INTO "mktune_trials" VALUES(2,1,1,'217e6dd8b98ee4431283b0a915fabbea017da42da44a90d4267d63b6c1f49659','{"contract":1,"edges":{"A0->B0p":"programmatic","B0p->B0f":"full"},"executor":"cuda_graph","kernels":{"A0":{"chain":"full","gdc":"entry","l2_prefetch_bytes":0,"priority":0,"stream":0,"trigger":"exit"},"B0f":{"chain":"full","gdc":"entry","l2_prefetch_bytes":0,"priority":0,"stream":0,"trigger":"exit"},"B0p":{"chain":"full","gdc":"entry","l2_prefetch_bytes":0,"priority":0,"stream":0,"trigger":"exit"}},"kv_range":[1,8192],"m_range":[16,16],"ops":{"A0":{"config":{"threads":192},"impl":"mktune"},"B0":{"config":{"block_m":16,"block_n":64,"finalizer":"kernel","split_k":4,"stages":3,"warps":4},"impl":"wgmma"}},"order":["A0","B0p","B0f"],"scale_format":"fp32","schema":1,"shape":{"kv":8192,"requests":2,"tokens_per_request":8},"workload":"glm52_attention_prefix"}','tpe','["host", 1, "2"]','2025-01-01T00:00:00.000+00:00','2025-01-01T00:00:01.000+00:00','ok','','[{"ask": 0.01}, {"measure": 0.5}]','23456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef01',NULL,1,'GPU-1');
INSERT INTO "mktune_trials" VALUES(3,1,2,'bad64e7a6e30496d398eb5288fc055f5aab3fbe137831405fd6a41b802e8ba85','{"contract":1,"edges":{"A0->B0p":"programmatic","B0p->B0f":"full"},"executor":"cuda_graph","kernels":{"A0":{"chain":"full","gdc":"entry","l2_prefetch_bytes":0,"priority":0,"stream":0,"trigger":"exit"},"B0f":{"chain":"full","gdc":"entry","l2_prefetch_bytes":0,"priority":0,"stream":0,"trigger":"exit"},"B0p":{"chain":"full","gdc":"entry","l2_prefetch_bytes":0,"priority":0,"stream":0,"trigger":"exit"}},"kv_range":[1,8192],"m_range":[16,16],"ops":{"A0":{"config":{"threads":192},"impl":"mktune"},"B0":{"config":{"block_m":16,"block_n":64,"finalizer":"kernel","split_k":4,"stages":5,"warps":4},"impl":"wgmma"}},"order":["A0","B0p","B0f"],"scale_format":"fp32","schema":1,"shape":{"kv":8192,"requests":2,"tokens_per_request":8},"workload":"glm52_attention_prefix"}','tpe','["host", 1, "2"]','2025-01-01T00:00:00.000+00:00','2025-01-01T00:00:01.000+00:00','hang','no answer after 5 s','[{}, {}]',NULL,NULL,1,'GPU-1');
CREATE INDEX ix_mktune_plans_plan_id ON mktune_plans (plan_id);
CREATE UNIQUE INDEX uq_mktune_plans_key ON mktune_plans (workload, contract, scale_format, ops, requests, tokens_per_request, kv, gpu, sms, compute_capability, simulated) WHERE replaced IS NULL;
CREATE INDEX ix_mktune_trials_plan_id ON mktune_trials (plan_id);
CREATE UNIQUE INDEX uq_mktune_trials_study_id_reserved ON mktune_trials (study_id, reserved);
COMMIT;
