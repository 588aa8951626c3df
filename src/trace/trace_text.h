/* trace_text.h - labels in JSON and XML. */
#ifndef RRFP_TRACE_TEXT_H
#define RRFP_TRACE_TEXT_H

#include <stdio.h>

/* A JSON string with its quotes.  Bytes that are not UTF-8 become U+FFFD. */
void rrfp_trace_write_json_string(FILE *out, const char *text);
/* Text between XML tags or in a quoted attribute; what XML cannot hold becomes U+FFFD. */
void rrfp_trace_write_xml_text(FILE *out, const char *text);

#endif /* RRFP_TRACE_TEXT_H */
