{{/* The arguments of `tollkeeper serve`. */}}
{{- define "tollkeeper.args" -}}
{{ include "tollkeeper.ownArgs" . }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Those that other values than extraArgs set. */}}
{{- define "tollkeeper.ownArgs" -}}
- serve
- "--grpc-addr=[::]:8081"
- "--http-addr=[::]:8080"
{{- with .Values.controlPlane.url }}
- {{ printf "--rules=%s" . | quote }}
{{- else }}
- --rules=/etc/tollkeeper/rules
{{- end }}
{{- with .Values.rulesOverlay }}
- --rules-overlay=/etc/tollkeeper/overlay/overlay.yaml
{{- end }}
{{- if .Values.candidate.rules }}
- --candidate=/etc/tollkeeper/candidate
- --candidate-one-in={{ int64 .Values.candidate.oneIn }}
{{- end }}
{{- with .Values.controlPlane.tls.name }}
- {{ printf "--rules-tls-name=%s" . | quote }}
{{- end }}
- {{ include "tollkeeper.storeUrl" . | printf "--store=%s" | quote }}
{{- if ne (include "tollkeeper.storeUrl" .) "memory://" }}
- --store-pool-size={{ .Values.store.poolSize }}
{{- /* Helm reads a large number as a float, and would print 1e+06. */}}
- --over-limit-cache={{ .Values.store.overLimitCache | int }}
{{- end }}
- --memory-counters-max={{ int64 .Values.store.memoryCountersMax }}
- --memory-size-max={{ .Values.store.memorySizeMax }}
- --decision-budget={{ .Values.decisionBudget }}
- --drain={{ .Values.drainSeconds }}s
- --max-message-bytes={{ .Values.maxMessageBytes }}
- --max-descriptors={{ .Values.maxDescriptors }}
- --on-store-failure={{ .Values.onStoreFailure }}
- --replicas={{ include "tollkeeper.replicas" . }}
- --headers={{ .Values.headers }}
{{- if kindIs "bool" .Values.countDenied }}
- --count-denied={{ .Values.countDenied | ternary "on" "off" }}
{{- end }}
{{- if .Values.reflection }}
- --reflection
{{- end }}
- --log-level={{ .Values.log.level }}
- --log-format={{ .Values.log.format }}
{{- with .Values.store.sentinel.user }}
- {{ printf "--store-sentinel-user=%s" . | quote }}
{{- end }}
{{- with .Values.store.tls.name }}
- {{ printf "--store-tls-name=%s" . | quote }}
{{- end }}
{{- range include "tollkeeper.files" . | fromYamlArray }}
{{- if .flag }}
- --{{ .flag }}=/etc/tollkeeper/secrets/{{ .path }}
{{- end }}
{{- end }}
{{- if .Values.clientDomains }}
- --client-domains=/etc/tollkeeper/clients/clients.yaml
{{- end }}
{{- if .Values.admin.tokenSecret.name }}
- "--admin-addr=[::]:6070"
{{- end }}
{{- range $flag, $value := .Values.settings }}
- {{ printf "--%s=%s" $flag (kindIs "float64" $value | ternary (toJson $value) (toString $value)) | quote }}
{{- end }}
{{- end -}}

{{/* The files of Secrets: the flag that names each, its path, the values with its Secret and key, and the default of the key. */}}
{{- define "tollkeeper.secretFiles" -}}
- { flag: store-password-file, path: store-password, secret: store.passwordSecret.name, key: store.passwordSecret.key, default: password }
- { flag: store-sentinel-password-file, path: sentinel-password, secret: store.sentinel.passwordSecret.name, key: store.sentinel.passwordSecret.key, default: password }
- { flag: store-tls-ca, path: store-ca.crt, secret: store.tls.caSecret.name, key: store.tls.caSecret.key, default: ca.crt }
- { flag: store-tls-cert, path: store.crt, secret: store.tls.certSecret.name, key: store.tls.certSecret.certKey, default: tls.crt }
- { flag: store-tls-key, path: store.key, secret: store.tls.certSecret.name, key: store.tls.certSecret.keyKey, default: tls.key }
- { flag: rules-tls-ca, path: rules-ca.crt, secret: controlPlane.tls.caSecret.name, key: controlPlane.tls.caSecret.key, default: ca.crt }
- { flag: rules-tls-cert, path: rules.crt, secret: controlPlane.tls.certSecret.name, key: controlPlane.tls.certSecret.certKey, default: tls.crt }
- { flag: rules-tls-key, path: rules.key, secret: controlPlane.tls.certSecret.name, key: controlPlane.tls.certSecret.keyKey, default: tls.key }
- { flag: tls-cert, path: tls.crt, secret: tls.secret, key: tls.certKey, default: tls.crt }
- { flag: tls-key, path: tls.key, secret: tls.secret, key: tls.keyKey, default: tls.key }
- { flag: tls-client-ca, path: client-ca.crt, secret: tls.clientCaSecret.name, key: tls.clientCaSecret.key, default: ca.crt }
- { flag: admin-token-file, path: admin-token, secret: admin.tokenSecret.name, key: admin.tokenSecret.key, default: token }
- { flag: hold-key-file, path: hold-keys, secret: holds.keySecret.name, key: holds.keySecret.key, default: keys }
- { flag: notices-key-file, path: notices-key, secret: notices.keySecret.name, key: notices.keySecret.key, default: key }
{{- end -}}

{{/* The files of the Secrets that are given: the flag that names each, its Secret and key, and its path. */}}
{{- define "tollkeeper.files" -}}
{{- range include "tollkeeper.secretFiles" . | fromYamlArray }}
{{- $secret := include "tollkeeper.valueAt" (list $ .secret) }}
{{- if $secret }}
- {{ dict "flag" .flag "secret" $secret "key" (include "tollkeeper.valueAt" (list $ .key)) "path" .path | toJson }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The files of Secrets as one volume, and whether pods start without them. Without subPath, so that changes reach the pod. */}}
{{- define "tollkeeper.secretsVolume" -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- range .files }}
      - secret:
          name: {{ .secret }}
          {{- if $.optional }}
          optional: true
          {{- end }}
          items:
            - key: {{ .key }}
              path: {{ .path }}
      {{- end }}
{{- end -}}

{{/* A list of variables, or of their sources, of which the pod starts without the Secrets and ConfigMaps that are missing. */}}
{{- define "tollkeeper.optional" -}}
{{- $copy := deepCopy . -}}
{{- range $copy.list }}
{{- $source := .valueFrom | default . }}
{{- range list "secretKeyRef" "configMapKeyRef" "secretRef" "configMapRef" }}
{{- with get $source . }}
{{- $_ := set . "optional" true }}
{{- end }}
{{- end }}
{{- end }}
{{- if $copy.list }}
{{- toYaml $copy }}
{{- end }}
{{- end -}}

{{/* A security context, without the numbers that OpenShift assigns, where it does: the root, and the context. */}}
{{- define "tollkeeper.securityContext" -}}
{{- $root := first . -}}
{{- $adapt := (($root.Values.global.compatibility).openshift).adaptSecurityContext | default "auto" -}}
{{- $is_openshift := $root.Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
{{- if or (eq $adapt "force") (and (eq $adapt "auto") $is_openshift) -}}
{{- omit (last .) "runAsUser" "runAsGroup" "fsGroup" | toYaml -}}
{{- else -}}
{{- last . | toYaml -}}
{{- end -}}
{{- end -}}

{{/* What all pods of this image have: no token, no variables of Services, and least privilege. */}}
{{- define "tollkeeper.podBasics" -}}
# The service never talks to Kubernetes.
automountServiceAccountToken: false
# A Service called tollkeeper would put TOLLKEEPER_… variables into every pod.
enableServiceLinks: false
securityContext:
  {{- include "tollkeeper.securityContext" (list . .Values.podSecurityContext) | nindent 2 }}
{{- with concat (.Values.global.imagePullSecrets | default list) (.Values.imagePullSecrets | default list) }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The times of a probe. Helm reads numbers as floats. */}}
{{- define "tollkeeper.probe" -}}
{{- range $name, $number := . }}
{{ $name }}: {{ int64 $number }}
{{- end }}
{{- end -}}

{{- define "tollkeeper.topologySpread" -}}
{{- if .Values.topologySpreadConstraints }}
{{- toYaml .Values.topologySpreadConstraints }}
{{- else if .Values.topologySpread }}
{{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "tollkeeper.selectorLabels" $ | nindent 6 }}
{{- end }}
{{- end }}
{{- end -}}
