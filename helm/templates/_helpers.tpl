{{- define "tollkeeper.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 54 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 54 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 54 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* A Deployment's selector cannot be changed, so these labels must never change. */}}
{{- define "tollkeeper.selectorLabels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The selector of pods other than the service's: the root, and what they are for. */}}
{{- define "tollkeeper.selectorLabelsOf" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Values.nameOverride | default $root.Chart.Name }}-{{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- end -}}

{{/* Labels that all objects have. */}}
{{- define "tollkeeper.sharedLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Labels, each once: the root, a selector, and more labels of this object, which win over commonLabels. */}}
{{- define "tollkeeper.mergedLabels" -}}
{{- $root := index . 0 -}}
{{- $own := printf "%s\n%s" (index . 1) (include "tollkeeper.sharedLabels" $root) | fromYaml -}}
{{- merge $own (index . 2 | default dict) ($root.Values.commonLabels | default dict) | toYaml -}}
{{- end -}}

{{- define "tollkeeper.labels" -}}
{{- include "tollkeeper.mergedLabels" (list . (include "tollkeeper.selectorLabels" .) dict) -}}
{{- end -}}

{{/* The labels of an object of the service: the root, and more labels. */}}
{{- define "tollkeeper.labelsWith" -}}
{{- $root := index . 0 -}}
{{- include "tollkeeper.mergedLabels" (list $root (include "tollkeeper.selectorLabels" $root) (index . 1)) -}}
{{- end -}}

{{/* The labels of objects that are not the service: the root, and what they are for. */}}
{{- define "tollkeeper.labelsOf" -}}
{{- include "tollkeeper.mergedLabels" (list (index . 0) (include "tollkeeper.selectorLabelsOf" .) dict) -}}
{{- end -}}

{{/* The namespace of the chart's objects. */}}
{{- define "tollkeeper.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{/* The metadata of an object: the root, its name and, if it has them, its own labels, annotations and namespace. */}}
{{- define "tollkeeper.metadata" -}}
name: {{ .name }}
{{- with .namespace | default .root.Values.namespaceOverride }}
namespace: {{ . }}
{{- end }}
labels:
  {{- .labels | default (include "tollkeeper.labels" .root) | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) (.root.Values.commonAnnotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tollkeeper.rulesConfigMap" -}}
{{- .Values.existingRulesConfigMap | default (printf "%s-rules" (include "tollkeeper.fullname" .)) -}}
{{- end -}}

{{- define "tollkeeper.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "tollkeeper.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "tollkeeper.image" -}}
{{- $repository := include "tollkeeper.ofRegistry" (list . .Values.image.repository) -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* An image, with global.imageRegistry in place of its registry, if it is set. */}}
{{- define "tollkeeper.ofRegistry" -}}
{{- $image := index . 1 -}}
{{- with (index . 0).Values.global.imageRegistry -}}
{{ . }}/{{ regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $image "" }}
{{- else -}}
{{ $image }}
{{- end -}}
{{- end -}}

{{/* What the HTTP port speaks: http or https. */}}
{{- define "tollkeeper.httpScheme" -}}
{{- $scope := get (.Values.settings | default dict) "tls-scope" -}}
{{- if and .Values.tls.secret (ne $scope "grpc") -}}
https
{{- else -}}
http
{{- end -}}
{{- end -}}

{{/* Whether the Service has the port of HTTP: not beyond the cluster, unless a value says so. Empty if not. */}}
{{- define "tollkeeper.servesHttp" -}}
{{- $http := .Values.service.http -}}
{{- if or $http (and (kindIs "invalid" $http) (eq .Values.service.type "ClusterIP")) -}}
true
{{- end -}}
{{- end -}}

{{- define "tollkeeper.storeUrl" -}}
{{- if .Values.bundledRedis.enabled -}}
redis://{{ include "tollkeeper.fullname" . }}-redis:6379
{{- else -}}
{{ .Values.store.url }}
{{- end -}}
{{- end -}}

{{/* The greatest number of replicas: with fewer, `local` admits less than the limit, and never more. */}}
{{- define "tollkeeper.replicas" -}}
{{- if .Values.autoscaling.enabled -}}
{{ .Values.autoscaling.maxReplicas }}
{{- else -}}
{{ max 1 .Values.replicas }}
{{- end -}}
{{- end -}}

{{/* The rules as the data of a ConfigMap: the example, if there are none. */}}
{{- define "tollkeeper.rulesData" -}}
{{- $example := dict "rules.yaml" (.Files.Get "files/example-rules.yaml") }}
{{- range $name, $text := .Values.rules | default $example }}
{{- if $text }}
{{- /* The 2 sets the indentation, since the first line of the text may be indented more. */}}
{{ $name }}: |2
  {{- $text | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The candidate as the data of a ConfigMap. */}}
{{- define "tollkeeper.candidateData" -}}
candidate.yaml: |2
  {{- .Values.candidate.rules | nindent 2 }}
{{- end -}}

{{/* The overlay as the data of a ConfigMap. */}}
{{- define "tollkeeper.overlayData" -}}
overlay.yaml: |2
  {{- .Values.rulesOverlay | nindent 2 }}
{{- end -}}

{{/* The domains of clients as the data of a ConfigMap. */}}
{{- define "tollkeeper.clientsData" -}}
clients.yaml: |
  {{- toYaml .Values.clientDomains | nindent 2 }}
{{- end -}}

{{/* The alerts of the chart, before values change them. */}}
{{- define "tollkeeper.alerts" -}}
{{ .Files.Get "files/alerts.yaml" }}
{{- end -}}

{{- /* The runbook's address in the files of alerts and of the dashboard. */}}
{{- define "tollkeeper.runbook" -}}
https://github.com/tollkeeper/tollkeeper/blob/main/docs/operations.md
{{- end }}
