{{- define "penstock.name" -}}
{{- if contains "penstock" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-penstock" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "penstock.bookkeeper" -}}
{{- if hasPrefix "bookkeeper://" .Values.cluster.log }}true{{ end }}
{{- end }}

{{- define "penstock.image" -}}
{{- $variant := ternary "-java" "" (eq (include "penstock.bookkeeper" .) "true") -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s%s" .Chart.AppVersion $variant) }}
{{- end }}

{{/* What would start and not work. */}}
{{- define "penstock.check" -}}
{{- if and (not .Values.security.secret) (not .Values.security.insecure) }}
{{- fail "security.secret is empty: name the secret with the files of `penstock security make`, or set security.insecure to true" }}
{{- end }}
{{- if and .Values.stores.external.enabled (not .Values.stores.external.domain) }}
{{- fail "stores.external.domain is empty: clients outside get the addresses POD.domain" }}
{{- end }}
{{- if and .Values.controllers.external.enabled (not .Values.controllers.external.host) }}
{{- fail "controllers.external.host is empty: it is the address given to clients outside" }}
{{- end }}
{{- if and .Values.zookeeper.user (not .Values.zookeeper.passwordSecret) }}
{{- fail "zookeeper.passwordSecret is empty: it has the password of zookeeper.user" }}
{{- end }}
{{- end }}

{{/* Variables that all processes have. */}}
{{- define "penstock.environment" -}}
- name: PENSTOCK_CLUSTER__ZOOKEEPER
  value: {{ printf "%s%s" .Values.zookeeper.servers .Values.zookeeper.path | quote }}
{{- if .Values.zookeeper.user }}
- name: PENSTOCK_CLUSTER__ZOOKEEPER_USER
  value: {{ .Values.zookeeper.user | quote }}
- name: PENSTOCK_CLUSTER__ZOOKEEPER_PASSWORD_FILE
  value: /etc/penstock/zookeeper/password
{{- end }}
{{- if .Values.zookeeper.tls }}
- name: PENSTOCK_CLUSTER__ZOOKEEPER_TLS
  value: "on"
{{- if .Values.zookeeper.authoritySecret }}
- name: PENSTOCK_CLUSTER__ZOOKEEPER_AUTHORITY
  value: /etc/penstock/zookeeper-authority/ca.crt
{{- end }}
{{- end }}
{{- if .Values.settings }}
- name: PENSTOCK_CONFIG
  value: /etc/penstock/settings/penstock.toml
{{- end }}
{{- if .Values.bucket.endpoint }}
- name: AWS_ENDPOINT_URL
  value: {{ .Values.bucket.endpoint | quote }}
{{- end }}
{{- if .Values.bucket.region }}
- name: AWS_REGION
  value: {{ .Values.bucket.region | quote }}
{{- end }}
{{- if include "penstock.bookkeeper" . }}
- name: PENSTOCK_BOOKKEEPER__JARS
  value: /opt/bookkeeper-jars
{{- end }}
{{- end }}

{{/* Variables of servers. They follow POD_NAME, which they use. */}}
{{- define "penstock.serverEnvironment" -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: PENSTOCK_CLUSTER__NAME
  value: $(POD_NAME)
- name: PENSTOCK_LOG_LEVEL
  value: {{ .Values.log.level | quote }}
- name: PENSTOCK_LOG_FORMAT
  value: {{ .Values.log.format | quote }}
- name: PENSTOCK_OPERATIONS__IS_ENABLED
  value: "true"
- name: PENSTOCK_OPERATIONS__PORT
  value: {{ .Values.metrics.port | quote }}
- name: PENSTOCK_OPERATIONS__HOST
  value: 0.0.0.0
{{- if .Values.security.secret }}
- name: PENSTOCK_SECURITY__TLS
  value: "on"
- name: PENSTOCK_SECURITY__AUTH
  value: "on"
{{- else }}
- name: PENSTOCK_SECURITY__IS_INSECURE_ALLOWED
  value: "true"
{{- end }}
- name: PENSTOCK_CLUSTER__INTERNAL_LISTENER
  value: inside
{{- end }}

{{- define "penstock.environmentFrom" -}}
{{- if .Values.bucket.secret }}
envFrom:
  - secretRef:
      name: {{ .Values.bucket.secret }}
{{- end }}
{{- end }}

{{- define "penstock.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* What all pods have. */}}
{{- define "penstock.pod" -}}
automountServiceAccountToken: false
{{- if .Values.bucket.serviceAccount }}
serviceAccountName: {{ .Values.bucket.serviceAccount }}
{{- end }}
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "penstock.mounts" -}}
volumeMounts:
  - name: data
    mountPath: /data
  - name: temporary
    mountPath: /tmp
{{- if .Values.settings }}
  - name: settings
    mountPath: /etc/penstock/settings
    readOnly: true
{{- end }}
{{- if .Values.zookeeper.user }}
  - name: zookeeper-account
    mountPath: /etc/penstock/zookeeper
    readOnly: true
{{- end }}
{{- if and .Values.zookeeper.tls .Values.zookeeper.authoritySecret }}
  - name: zookeeper-authority
    mountPath: /etc/penstock/zookeeper-authority
    readOnly: true
{{- end }}
{{- end }}

{{- define "penstock.volumes" -}}
volumes:
  # Nothing of the cluster is here: copies of keys, the audit log, scratch files.
  - name: data
    emptyDir: {}
  - name: temporary
    emptyDir: {}
{{- if .Values.security.secret }}
  - name: security
    secret:
      secretName: {{ .Values.security.secret }}
      defaultMode: 0440
{{- end }}
{{- if .Values.settings }}
  - name: settings
    configMap:
      name: {{ include "penstock.name" . }}
{{- end }}
{{- if .Values.zookeeper.user }}
  - name: zookeeper-account
    secret:
      secretName: {{ .Values.zookeeper.passwordSecret }}
      defaultMode: 0440
{{- end }}
{{- if and .Values.zookeeper.tls .Values.zookeeper.authoritySecret }}
  - name: zookeeper-authority
    secret:
      secretName: {{ .Values.zookeeper.authoritySecret }}
      defaultMode: 0440
{{- end }}
{{- end }}

{{/* Servers refuse keys that other accounts can read, and write the audit log beside them: so they get a copy. */}}
{{- define "penstock.securityFiles" -}}
{{- if .Values.security.secret }}
initContainers:
  - name: security-files
    image: {{ include "penstock.image" . | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    command: [sh, -c, "umask 077 && mkdir -p /data/security && cp -L /secret/* /data/security/"]
    {{- include "penstock.containerSecurity" . | nindent 4 }}
    volumeMounts:
      - name: data
        mountPath: /data
      - name: security
        mountPath: /secret
        readOnly: true
{{- end }}
{{- end }}

{{- define "penstock.podMetadata" -}}
annotations:
  # Other settings start the pods anew.
  penstock/settings: {{ .Values.settings | sha256sum | trunc 16 | quote }}
{{- if .Values.metrics.annotations }}
  prometheus.io/scrape: "true"
  prometheus.io/path: /metrics
  prometheus.io/port: {{ .Values.metrics.port | quote }}
{{- end }}
{{- end }}

{{/*
/live does not depend on recovery, storage or other processes, and answers from the beginning of a start. There is no
startup probe: it would end a server that recovers a long log.
*/}}
{{- define "penstock.probes" -}}
livenessProbe:
  httpGet:
    path: /live
    port: metrics
  initialDelaySeconds: 10
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet:
    path: /ready
    port: metrics
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{- define "penstock.spread" -}}
topologySpreadConstraints:
{{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "penstock.selector" $.root | nindent 8 }}
        app.kubernetes.io/component: {{ $.component }}
{{- end }}
{{- end }}

{{- define "penstock.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
