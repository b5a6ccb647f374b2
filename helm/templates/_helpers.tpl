{{- define "tollkeeper.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* A Deployment's selector cannot be changed, so these labels must never change. */}}
{{- define "tollkeeper.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tollkeeper.labels" -}}
{{ include "tollkeeper.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "tollkeeper.rulesConfigMap" -}}
{{- .Values.existingRulesConfigMap | default (printf "%s-rules" (include "tollkeeper.fullname" .)) -}}
{{- end -}}

{{- define "tollkeeper.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Checks that a schema cannot express. */}}
{{- define "tollkeeper.check" -}}
{{- if and (eq .Values.store.url "memory://") (gt (int .Values.replicas) 1) -}}
{{- fail (printf "replicas is %d with store.url memory://: each replica would count on its own, which admits %d times the limits. Set store.url to a Redis that they share, or replicas to 1." (int .Values.replicas) (int .Values.replicas)) -}}
{{- end -}}
{{- if regexMatch "://.*:.*@" .Values.store.url -}}
{{- fail "store.url contains a password, which anyone who may read the pod would see. Put it into a Secret, and name the Secret in store.passwordSecret." -}}
{{- end -}}
{{- if not (or .Values.existingRulesConfigMap (.Values.rules | default dict | values | join "" | trim)) -}}
{{- fail "rules is empty, and the service does not start without rules. Add a rule file, or name a ConfigMap in existingRulesConfigMap." -}}
{{- end -}}
{{- range $label, $value := include "tollkeeper.labels" . | fromYaml -}}
{{- if hasKey ($.Values.podLabels | default dict) $label -}}
{{- fail (printf "podLabels contains %s, which the chart sets itself." $label) -}}
{{- end -}}
{{- end -}}
{{- $size := .Values.maxMessageBytes -}}
{{- $unit := hasSuffix "KiB" $size | ternary 1024 (hasSuffix "MiB" $size | ternary 1048576 1) -}}
{{- $bytes := mul $unit (regexFind "^[0-9]+" $size | int64) -}}
{{- if or (lt $bytes 1024) (gt $bytes 67108864) -}}
{{- fail (printf "maxMessageBytes is %s, and must be from 1KiB to 64MiB." $size) -}}
{{- end -}}
{{- end -}}
