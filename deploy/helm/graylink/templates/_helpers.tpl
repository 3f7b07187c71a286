{{- define "graylink.labels" -}}
app.kubernetes.io/name: graylink
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "graylink.selector" -}}
app.kubernetes.io/name: graylink
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "graylink.image" -}}
{{- $image := .root.Values.image -}}
{{ $image.registry }}/{{ .program }}{{ if hasKey $image.digests .program }}@{{ index $image.digests .program }}{{ else }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "graylink.pull" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "graylink.topologyConfigMap" -}}
{{- if .Values.topology.existingConfigMap -}}
{{ .Values.topology.existingConfigMap }}
{{- else -}}
{{- if not .Values.topology.inline }}{{ fail "topology.inline or topology.existingConfigMap is required: docs/topology.md" }}{{ end -}}
graylink-topology
{{- end -}}
{{- end }}

{{- define "graylink.tlsSecret" -}}
{{ .Values.tls.existingSecret | default "graylink-tls" }}
{{- end }}

{{- define "graylink.caConfigMap" -}}
{{- if and .Values.tls.existingSecret (not .Values.tls.existingCAConfigMap) }}{{ fail "tls.existingCAConfigMap is required beside tls.existingSecret" }}{{ end -}}
{{ .Values.tls.existingCAConfigMap | default "graylink-ca" }}
{{- end }}

{{- define "graylink.coordinatorName" -}}
graylink-coordinator.{{ .Release.Namespace }}.svc
{{- end }}

{{- /* Where agents and the analyzer reach the coordinators, separated by commas. All of them show coordinatorName. */ -}}
{{- define "graylink.coordinatorAddresses" -}}
{{- if eq (int .Values.coordinator.replicas) 1 -}}
{{ include "graylink.coordinatorName" . }}:9870
{{- else -}}
graylink-coordinator-0.{{ .Release.Namespace }}.svc:9870,graylink-coordinator-1.{{ .Release.Namespace }}.svc:9870
{{- end -}}
{{- end }}

{{- /* What PodSecurity "restricted" wants of a container that needs nothing. */ -}}
{{- define "graylink.restricted" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "graylink.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "graylink.probes" -}}
livenessProbe:
  httpGet: {path: /-/healthy, port: {{ .port }}}
  periodSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /-/ready, port: {{ .port }}}
  periodSeconds: 5
{{- end }}
