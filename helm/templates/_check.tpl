{{/* Checks that a schema cannot express. */}}
{{- define "tollkeeper.check" -}}
{{- $replicas := include "tollkeeper.replicas" . | int -}}
{{- if and (eq (include "tollkeeper.storeUrl" .) "memory://") (gt $replicas 1) -}}
{{- fail (printf "there may be %d replicas with store.url memory://: each replica would count on its own, which admits %d times the limits. Set store.url to a Redis that they share, or replicas to 1." $replicas $replicas) -}}
{{- end -}}
{{- if and .Values.bundledRedis.enabled (ne .Values.store.url "memory://") -}}
{{- fail "bundledRedis.enabled is true, and store.url names another store. Remove one of them." -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas is greater than autoscaling.maxReplicas." -}}
{{- end -}}
{{- if regexMatch "://.*:.*@" .Values.store.url -}}
{{- fail "store.url contains a password, which anyone who may read the pod would see. Put it into a Secret, and name the Secret in store.passwordSecret." -}}
{{- end -}}
{{- if and .Values.controlPlane.url .Values.existingRulesConfigMap -}}
{{- fail "controlPlane.url and existingRulesConfigMap name two sources of rules. Remove one of them." -}}
{{- end -}}
{{- $xds := .Values.controlPlane.tls -}}
{{- if and (or $xds.name ($xds.caSecret).name ($xds.certSecret).name) (not (hasPrefix "xds+tls://" .Values.controlPlane.url)) -}}
{{- fail "controlPlane.tls needs a controlPlane.url that begins with xds+tls://." -}}
{{- end -}}
{{- if not (or .Values.controlPlane.url .Values.existingRulesConfigMap (.Values.rules | default dict | values | join "" | trim)) -}}
{{- fail "rules is empty, and the service does not start without rules. Add a rule file, or name a ConfigMap in existingRulesConfigMap or a control plane in controlPlane.url." -}}
{{- end -}}
{{- if and .Values.tls.clientCaSecret.name (not .Values.tls.secret) -}}
{{- fail "tls.clientCaSecret needs tls.secret." -}}
{{- end -}}
{{- if and .Values.clientDomains (not .Values.tls.clientCaSecret.name) -}}
{{- fail "clientDomains needs tls.clientCaSecret, since clients are known by their certificates." -}}
{{- end -}}
{{- range $name := list "podLabels" "commonLabels" -}}
{{- range $label, $value := get $.Values $name | default dict -}}
{{- if regexMatch "^(app.kubernetes.io/(name|instance|version|managed-by|component)|helm.sh/chart)$" $label -}}
{{- fail (printf "%s contains %s, which the chart sets itself." $name $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $size := .Values.maxMessageBytes -}}
{{- $unit := hasSuffix "KiB" $size | ternary 1024 (hasSuffix "MiB" $size | ternary 1048576 1) -}}
{{- $bytes := mul $unit (regexFind "^[0-9]+" $size | int64) -}}
{{- if or (lt $bytes 1024) (gt $bytes 67108864) -}}
{{- fail (printf "maxMessageBytes is %s, and must be from 1KiB to 64MiB." $size) -}}
{{- end -}}
{{- end -}}
